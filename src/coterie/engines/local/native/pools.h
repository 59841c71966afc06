/* Pools: `planes` images of h x w, windows of kh x kw that lie sh and sw apart, all inside and
   without numbers in common.

   Windows of 2 x 2 that fill the images are taken LANES at once. Where a row has fewer, they
   reach into the next rows, which are written later; SAFE are the rows after which there is room.
*/
#define WINDOW UNROLL for (int i = 0; i < kh; i++) UNROLL for (int j = 0; j < kw; j++)
#define FILLED (kh == 2 && kw == 2 && sh == 2 && sw == 2 && h == ho * 2 && w == wo * 2)
#define SAFE (FILLED ? planes * ho - LANES / wo - 1 : 0)
/* where the next windows of a row begin; the last ones are taken so that they end with the row */
#define NEXT (p < wo - LANES && p + LANES > wo - LANES ? wo - LANES : p + LANES)

typedef __typeof__((vec){0} < (vec){0}) flags;
INLINE vec pick(flags where, vec yes, vec no) {
  return (vec)((where & (flags)yes) | (~where & (flags)no));
}
INLINE vec read_every_second(const real *at, int odd) {
  const vec one = *(const vec *)at, two = *(const vec *)(at + LANES);
  if (odd)
    return __builtin_shufflevector(one, two, ODD);
  return __builtin_shufflevector(one, two, EVEN);
}

/* the largest numbers of LANES windows of 2 x 2, and whether the last three are larger than
   those before them */
INLINE vec find_largest(const real *at, int w, flags *later) {
  vec most = read_every_second(at, 0);
  UNROLL for (int k = 1; k < 4; k++) {
    const vec one = read_every_second(at + k / 2 * w, k % 2);
    later[k - 1] = (one > most) | (one != one);
    most = pick(later[k - 1], one, most);
  }
  return most;
}

INLINE void pool_largest(real *out, const real *x, long planes, int h, int w, int kh, int kw,
                         int sh, int sw, int ho, int wo) {
  for (long n = 0; n < planes * ho; n++) {
    const real *at = x + n / ho * h * w + n % ho * sh * w;
    if (n < SAFE) {
      flags later[3];
      for (int p = 0; p < wo; p = NEXT)
        *(vec *)(out + n * wo + p) = find_largest(at + p * 2, w, later);
    } else {
      for (int p = 0; p < wo; p++) {
        real most = -INFINITY;
        WINDOW {
          const real one = at[i * w + p * sw + j];
          most = one > most || one != one ? one : most;
        }
        out[n * wo + p] = most;
      }
    }
  }
}

/* gradients go to the first of the largest numbers; none do where that is not `positive` */
INLINE void spread_largest(real *out, const real *gradients, const real *x, long planes, int h,
                           int w, int kh, int kw, int sh, int sw, int ho, int wo, int positive) {
  if (!FILLED)
    memset(out, 0, planes * h * w * sizeof(real));
  for (long n = 0; n < planes * ho; n++) {
    const long start = n / ho * h * w + n % ho * sh * w;
    if (n < SAFE) {
      for (int p = 0; p < wo; p = NEXT) {
        flags later[3];
        const vec most = find_largest(x + start + p * 2, w, later);
        flags gradient = (flags)(*(const vec *)(gradients + n * wo + p));
        if (positive)
          gradient &= ~(most <= 0);
        const vec to[4] = {(vec)(gradient & ~(later[0] | later[1] | later[2])),
                               (vec)(gradient & later[0] & ~(later[1] | later[2])),
                               (vec)(gradient & later[1] & ~later[2]),
                               (vec)(gradient & later[2])};
        UNROLL for (int i = 0; i < 2; i++) {
          real *at = out + start + i * w + p * 2;
          *(vec *)at = __builtin_shufflevector(to[2 * i], to[2 * i + 1], LOW);
          *(vec *)(at + LANES) =
              __builtin_shufflevector(to[2 * i], to[2 * i + 1], HIGH);
        }
      }
    } else {
      const real *at = x + start;
      for (int p = 0; p < wo; p++) {
        real most = -INFINITY;
        int where = 0;
        WINDOW {
          const real one = at[i * w + p * sw + j];
          const int more = one > most || one != one;
          most = more ? one : most;
          where = more ? i * kw + j : where;
        }
        const real given = gradients[n * wo + p];
        const real gradient = positive && most <= 0 ? 0 : given;
        WINDOW out[start + i * w + p * sw + j] = where == i * kw + j ? gradient : 0;
      }
    }
  }
}

INLINE void pool_mean(real *out, const real *x, long planes, int h, int w, int kh, int kw, int sh,
                      int sw, int ho, int wo) {
  for (long n = 0; n < planes * ho; n++) {
    const real *at = x + n / ho * h * w + n % ho * sh * w;
    for (int p = 0; p < wo; p++) {
      real sum = 0;
      WINDOW sum += at[i * w + p * sw + j];
      out[n * wo + p] = sum / (kh * kw);
    }
  }
}

INLINE void spread_mean(real *out, const real *gradients, long planes, int h, int w, int kh, int kw,
                        int sh, int sw, int ho, int wo) {
  memset(out, 0, planes * h * w * sizeof(real));
  for (long n = 0; n < planes * ho; n++) {
    real *to = out + n / ho * h * w + n % ho * sh * w;
    for (int p = 0; p < wo; p++)
      WINDOW to[i * w + p * sw + j] = gradients[n * wo + p] / (kh * kw);
  }
}

/* The same where windows overlap, have a border (top, left) or reach beyond the image: only places
   inside count, of the mean also those of the border where `border` is set. */
#define WIDE_WINDOW(body)                                                                          \
  for (long n = 0; n < planes * ho; n++)                                                           \
    for (int p = 0; p < wo; p++) {                                                                 \
      const int y = n % ho * sh - top, x0 = p * sw - left;                                         \
      const int ys = y < 0 ? 0 : y, xs = x0 < 0 ? 0 : x0;                                          \
      const int ye = LEAST(y + kh, h), xe = LEAST(x0 + kw, w);                                     \
      const long plane = n / ho * h * w;                                                           \
      body                                                                                         \
    }
#define SHARE                                                                                      \
  (real)(border ? (LEAST(y + kh, h + top) - y) * (LEAST(x0 + kw, w + left) - x0)                   \
                : (ye - ys) * (xe - xs))

INLINE void pool_mean_wide(real *out, const real *x, long planes, int h, int w, int kh, int kw,
                           int sh, int sw, int ho, int wo, int top, int left, int border) {
  WIDE_WINDOW({
    real sum = 0;
    for (int i = ys; i < ye; i++)
      for (int j = xs; j < xe; j++)
        sum += x[plane + (long)i * w + j];
    out[n * wo + p] = sum / SHARE;
  })
}

INLINE void spread_mean_wide(real *out, const real *gradients, long planes, int h, int w, int kh,
                             int kw, int sh, int sw, int ho, int wo, int top, int left,
                             int border) {
  memset(out, 0, planes * h * w * sizeof(real));
  WIDE_WINDOW({
    const real gradient = gradients[n * wo + p] / SHARE;
    for (int i = ys; i < ye; i++)
      for (int j = xs; j < xe; j++)
        out[plane + (long)i * w + j] += gradient;
  })
}

#define FIND_LARGEST                                                                               \
  real most = -INFINITY;                                                                           \
  long where = (long)ys * w + xs;                                                                  \
  for (int i = ys; i < ye; i++)                                                                    \
    for (int j = xs; j < xe; j++) {                                                                \
      const real one = x[plane + (long)i * w + j];                                                 \
      const int more = one > most || one != one;                                                   \
      most = more ? one : most;                                                                    \
      where = more ? (long)i * w + j : where;                                                      \
    }

INLINE void pool_largest_wide(real *out, const real *x, long planes, int h, int w, int kh, int kw,
                              int sh, int sw, int ho, int wo, int top, int left) {
  WIDE_WINDOW({
    FIND_LARGEST
    (void)where;
    out[n * wo + p] = most;
  })
}

INLINE void spread_largest_wide(real *out, const real *gradients, const real *x, long planes, int h,
                                int w, int kh, int kw, int sh, int sw, int ho, int wo, int top,
                                int left, int positive) {
  memset(out, 0, planes * h * w * sizeof(real));
  WIDE_WINDOW({
    FIND_LARGEST
    out[plane + where] += positive && most <= 0 ? 0 : gradients[n * wo + p];
  })
}
