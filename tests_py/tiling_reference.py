"""What the host tiling of Conv3DBackpropInput comes to, restated from CANN's rules, checked with its published cases.

It shares nothing with csrc/conv/input_tiling.cpp, which is compared with it. One group only, as the interface has.
"""


def cdiv(a, b):
    return -(-a // b)


def calign(a, b):
    return cdiv(a, b) * b


C0B, L1CAP, L0AB, L0C, L2CAP, WMERGE = 32, 524160, 65536, 131072, 150994944, 64


class Reference:
    """The tiling of one problem; `tiling` returns its numbers, or why a device refuses it."""

    def __init__(self, N, Ci, x, Co, y, k, st, pad, dil, fp32=False, cores=1):
        self.N, self.Ci, self.Co = N, Ci, Co
        self.Di, self.Hi, self.Wi = x
        self.Do, self.Ho, self.Wo = y
        self.kd, self.kh, self.kw = k
        self.st, self.pad, self.dil, self.cores = st, pad, dil, cores
        self.b = 4 if fp32 else 2
        self.c0 = C0B // self.b

    def check(self):
        sd, sh, sw = self.st
        dd, dh, dw = self.dil
        pf, pb, pu, pdn, pl, pr = self.pad
        if min(self.pad) < 0 or min(self.st) <= 0 or min(self.dil) <= 0:
            return "attr"
        if min(self.kd, self.kh, self.kw) <= 0 or min(self.N, self.Co, self.Ho, self.Wo, self.Do) <= 0:
            return "shape"
        for x, y, k, d, stv, p0, p1 in (
            (self.Di, self.Do, self.kd, dd, sd, pf, pb),
            (self.Hi, self.Ho, self.kh, dh, sh, pu, pdn),
            (self.Wi, self.Wo, self.kw, dw, sw, pl, pr),
        ):
            if (x + p0 + p1 - (k - 1) * d - 1) // stv + 1 != y:
                return "sizes"
        if sd > self.kd:
            return "stride_d>kd"
        if not (1 <= sh <= 63 and 1 <= sw <= 63 and 1 <= sd <= 255):
            return "stride range"
        if self.Hi * self.Wi > 2**32 - 1:
            return "hiwi"
        for p, k in ((pf, self.kd), (pb, self.kd), (pu, self.kh), (pdn, self.kh), (pl, self.kw), (pr, self.kw)):
            if not 0 <= p <= min(255, k - 1):
                return "pad range"
        bl = (self.kw - 1) * dw - pl
        bu = (self.kh - 1) * dh - pu
        if not (0 <= bl <= 255 and 0 <= bu <= 255):
            return "backprop pad"
        for x, y, stv, p in ((self.Wi, self.Wo, sw, pl), (self.Hi, self.Ho, sh, pu), (self.Di, self.Do, sd, pf)):
            if not -255 <= x - y * stv + p <= 255:
                return "backprop pad after"
        self.bpUp, self.bpLeft = bu, bl
        self.bpHead = (self.kd - 1) * dd - pf

        def aft(x, y, stv, p, k, d, before):
            v = max(0, x - y * stv + p)
            w = x - ((y - 1) * stv + 1) + (k - 1) * d - before
            return w if 0 <= w <= 255 else v

        self.bpTail = aft(self.Di, self.Do, sd, pf, self.kd, dd, self.bpHead)
        self.bpDown = aft(self.Hi, self.Ho, sh, pu, self.kh, dh, bu)
        self.bpRight = aft(self.Wi, self.Wo, sw, pl, self.kw, dw, bl)
        dm = (self.Di + pf + pb - ((self.kd - 1) * dd + 1)) % sd
        hm = (self.Hi + pu + pdn - ((self.kh - 1) * dh + 1)) % sh
        self.initOut = int(dm > pb or hm > pdn or sh > self.kh or dd > 1)
        return None

    def fmapH(self, m):
        if m == 0:
            return 0
        if m % self.Wi == 0 or self.Wi % m == 0:
            hi = cdiv(m, self.Wi)
        elif m > self.Wi:
            hi = m // self.Wi + 2
        else:
            hi = 2
        return min(hi - 1 + (self.kh - 1) * self.dil[1] + 1, (self.Ho - 1) * self.st[1] + 1)

    def l1ok(self, ka, kb):
        if (ka * self.bK) % self.len or (kb * self.bK) % self.len:
            return False
        k = kb * self.bK
        if k == 0:
            return False
        line = (
            cdiv(k, self.len)
            if (k % self.len == 0 or self.len % k == 0)
            else (k // self.len + 2 if k > self.len else 2)
        )
        bsz = self.bl1 * self.b * self.bN * line * self.len
        co = max(ka * self.bK // (self.kh * self.kw), 1)
        asz = self.fmapH(self.bM) * self.Wo * self.st[2] * co * self.b * self.al1
        return asz + bsz <= L1CAP

    def adjust(self, bM, bN, bK):
        l0ab = L0AB // 2 // self.b
        l0c = L0C // 1 // 4
        c0 = self.c0
        aM = calign(self.mV, c0)
        bK = min(bK, self.kV)
        while bK > c0:
            if bK % self.len == 0 or self.len % bK == 0:
                break
            bK = max(bK - c0, c0)
        bN = min(bN, self.nV)
        bM = min(bM, aM)
        if 0 in (bK, bN, bM):
            return bM, bN, bK
        mn = max(l0ab // bK // c0, 1) * c0
        if bN < 256 and bK < 128 // self.b:
            bM = min(min(mn, max(l0c // bN // c0, 1) * c0), aM)
        if bM < 256 and bK < 128 // self.b:
            bN = min(min(mn, max(l0c // bM // c0, 1) * c0), self.nV)
        mk = min(max(l0ab // max(bM, bN) // c0, 1) * c0, self.kV)
        while mk > c0:
            if mk % self.len == 0 or self.len % mk == 0:
                bK = mk
                break
            mk = max(mk - c0, c0)
        return bM, bN, bK

    def ladder(self):
        ka = kb = min(cdiv(self.kV, self.bK), self.kh * self.kw)
        while ka > 1 and kb > 1:
            if self.l1ok(ka, kb):
                break
            ka -= 1
            kb -= 1
        return ka, kb

    def equal(self):
        ho = self.fmapH(self.bM)
        bn = self.len * self.bN * self.b
        lb = L1CAP // 2 // self.bl1
        la = L1CAP // 2 // self.al1
        cb = max(1, lb // bn)
        cur = self.b * ho * self.Wo * self.st[2] * self.c0
        ca = max(1, la // cur)
        ca = min(ca, self.co1)
        cb = min(cb, self.co1)

        def maxdiv(a, b):
            while b >= 1:
                if a % b == 0:
                    return b
                b -= 1
            return 0

        if ca != cb:
            if cb > ca:
                ca = maxdiv(cb, ca)
            else:
                cb = maxdiv(ca, cb)
        ka = min(max(1, cdiv(ca * self.len, self.bK)), 65535 // self.bK)
        kb = max(1, cdiv(cb * self.len, self.bK))
        if ka > kb:
            ka = ka // kb * kb
        else:
            kb = kb // ka * ka
        return ka, kb

    def shrink(self):
        o = (self.bM, self.bN, self.bK)
        m, n, k = o
        c0 = self.c0
        mm = max(self.Wi, c0)
        while m > mm or n > c0:
            if m > mm and m > n:
                m = max(m - c0, c0)
            else:
                n = max(n - c0, c0)
            self.bM, self.bN, self.bK = m, n, k
            self.ka, self.kb = self.ladder()
            if self.l1ok(self.ka, self.kb):
                break
            self.ka, self.kb = self.equal()
            if self.l1ok(self.ka, self.kb):
                break
        k = min(max(L0AB // 2 // self.b // max(m, n) // c0, 1) * c0, self.kV)
        while k > c0:
            k = max(k - c0, c0)
            self.bK = k
            if k % self.len and self.len % k:
                continue
            self.ka, self.kb = self.ladder()
            if self.l1ok(self.ka, self.kb):
                return
            self.ka, self.kb = self.equal()
            if self.l1ok(self.ka, self.kb):
                return
        self.bM, self.bN, self.bK = o

    def legal(self):
        if self.l1ok(self.ka, self.kb):
            return
        self.shrink()
        if self.l1ok(self.ka, self.kb):
            return
        if self.al1 == 2 and self.bl1 == 2:
            self.bl1 = 1
            self.legal()
        if self.al1 == 2 and self.bl1 == 1:
            self.al1, self.bl1 = 1, 2
            self.legal()
        if self.al1 == 1 and self.bl1 == 2:
            self.bl1 = 1
            self.legal()

    def tiling(self):
        e = self.check()
        if e:
            return e
        c0 = self.c0
        self.ci1 = cdiv(self.Ci, c0)
        self.co1 = cdiv(self.Co, c0)
        self.mV = calign(self.Hi * self.Wi, c0)
        self.nV = self.ci1 * c0
        self.kV = self.kh * self.kw * self.co1 * c0
        self.len = self.kh * self.kw * c0
        bM, bN = (256, 128) if self.mV >= self.nV else (128, 256)
        self.bM, self.bN, self.bK = self.adjust(bM, bN, 128 // self.b)
        self.al1, self.bl1 = 2, 1
        kit = cdiv(self.kV, self.bK)
        done = False
        if self.l1ok(1, kit) and self.kd == 1:
            ka = min(kit, kit)
            while ka > 1:
                if self.l1ok(ka, kit) and kit % ka == 0:
                    break
                ka -= 1
            if self.l1ok(ka, kit):
                self.ka, self.kb = ka, kit
                done = True
        if not done:
            self.bl1 = 2
            a1 = self.equal()
            a2 = self.ladder()
            self.ka, self.kb = a1 if (self.l1ok(*a1) and sum(a1) > sum(a2)) else a2
        self.legal()
        if not self.l1ok(self.ka, self.kb):
            return "L1"
        self.scCin = self.bN
        self.scCin1 = cdiv(self.scCin, c0)
        self.scCout = self.co1 * c0
        hw = self.Hi * self.Wi
        mAl1 = self.bM
        ncnt = cdiv(self.Ci, self.scCin)
        bd = self.N * self.Di
        scK = self.kh * self.kw * self.co1 * c0
        self.scM = max(mAl1 // self.Wi, 1) * self.Wi

        def l2ok(m):
            dc = max(self.kd // self.st[0], 1)
            hc = max(self.fmapH(m) // self.st[1], 1)
            return (
                hc * self.Wo * dc * self.co1 * c0 + self.scCin * scK * dc + m * self.scCin + self.bM * self.bN
            ) * self.b * self.cores <= L2CAP

        if self.Wi > WMERGE and mAl1 % self.Wi and self.Wi % mAl1:
            for i in range(1, cdiv(hw, mAl1) + 1):
                t = cdiv(self.Hi, i) * self.Wi
                cnt = cdiv(hw, t) * bd * ncnt
                if cnt % self.cores and cnt < self.cores**2:
                    continue
                if not l2ok(t):
                    continue
                self.scM = t
                break
        else:
            tm = mAl1
            th = self.scM
            while th < hw and bd % self.cores == 0:
                tm += mAl1
                th = min(max(tm // self.Wi, 1) * self.Wi, hw)
                if hw % th:
                    continue
                if not l2ok(th):
                    continue
                self.scM = th
        return dict(
            single=[1, 1, 1, 1, self.scM, self.scCout, self.co1, self.scCin, self.scCin1],
            base=[self.bM, self.bK, self.bN, 1, 1, 1],
            pb=[2, 2, 1, self.al1, self.bl1],
            step=[1, 1, self.ka, self.kb, 1, 1],
            other=[1, 0],
            initOutputFlag=self.initOut,
            backpropPad=dict(
                head=self.bpHead, tail=self.bpTail, up=self.bpUp, down=self.bpDown, left=self.bpLeft, right=self.bpRight
            ),
        )
