int main_stub_for_now;
