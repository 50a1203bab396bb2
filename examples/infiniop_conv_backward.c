/* infiniop's ConvBackward from C: the gradients of y = x * w for x = (1, 2, 3), w = (1, 10) and dy = (1, 1).
   infiniop_conv_backward.py is the same from Python. */
#include <infiniop.h>
#include <stdio.h>
#include <stdlib.h>

static void check(infiniStatus_t status, const char* what) {
  if (status == INFINI_STATUS_SUCCESS) return;
  fprintf(stderr, "%s failed with %d: %s\n", what, (int)status, infiniopGetRecentErrMsg());
  exit(1);
}

static infiniopTensorDescriptor_t tensor(size_t n, size_t c, size_t l) {
  const size_t shape[] = {n, c, l};
  infiniopTensorDescriptor_t desc = NULL;
  check(infiniopCreateTensorDescriptor(&desc, 3, shape, NULL, INFINI_DTYPE_F32), "infiniopCreateTensorDescriptor");
  return desc;
}

int main(void) {
  const float x[] = {1, 2, 3}, w[] = {1, 10}, dy[] = {1, 1};
  float dx[3], dw[2], db[1];
  int pads[] = {0}, strides[] = {1}, dilations[] = {1};

  infiniopHandle_t handle = NULL;
  check(infiniopCreateHandle(&handle), "infiniopCreateHandle");
  infiniopTensorDescriptor_t grad_output = tensor(1, 1, 2), input = tensor(1, 1, 3), weight = tensor(1, 1, 2);
  infiniopConvBackwardDescriptor_t op = NULL;
  check(
      infiniopCreateConvBackwardDescriptor(handle, &op, grad_output, input, weight, NULL, pads, strides, dilations, 1),
      "infiniopCreateConvBackwardDescriptor");
  check(infiniopDestroyTensorDescriptor(grad_output), "infiniopDestroyTensorDescriptor");
  check(infiniopDestroyTensorDescriptor(input), "infiniopDestroyTensorDescriptor");
  check(infiniopDestroyTensorDescriptor(weight), "infiniopDestroyTensorDescriptor");

  size_t size = 0;
  check(infiniopGetConvBackwardWorkspaceSize(op, &size), "infiniopGetConvBackwardWorkspaceSize");
  void* workspace = malloc(size);
  check(infiniopConvBackward(op, workspace, size, dx, dw, db, dy, x, w, NULL), "infiniopConvBackward");
  printf("dx = %g %g %g, dw = %g %g, db = %g\n", dx[0], dx[1], dx[2], dw[0], dw[1], db[0]);

  free(workspace);
  check(infiniopDestroyConvBackwardDescriptor(op), "infiniopDestroyConvBackwardDescriptor");
  check(infiniopDestroyHandle(handle), "infiniopDestroyHandle");
  return dx[0] == 1 && dx[1] == 11 && dx[2] == 10 && dw[0] == 3 && dw[1] == 5 && db[0] == 2 ? 0 : 1;
}
