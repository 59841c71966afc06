/* Convolutions of small images, as products of small matrices.

   The sizes are constants where these functions are used; images lie in [n][channel][y][x].
*/
#define UNROLL _Pragma("GCC unroll 32")
#define HELD (BYTES == 64 ? 25 : 12) /* vectors that are summed at once */
#define LEAST(a, b) ((a) < (b) ? (a) : (b))

#define CONVOLUTIONS(T, S)                                                                         \
  /* an image within zeros, its rows and columns `apart` from each other */                        \
  INLINE void framed_##S(T *out, const T *x, int channels, int h, int w, int top, int left,        \
                         int high, int wide, int apart) {                                          \
    /* strides may leave out the last rows and columns */                                          \
    const int rows = LEAST(h, (high - top + apart - 1) / apart);                                   \
    const int columns = LEAST(w, (wide - left + apart - 1) / apart);                               \
    memset(out, 0, ((long)channels * high * wide + LANES_##S) * sizeof(T));                        \
    for (int c = 0; c < channels; c++)                                                             \
      for (int i = 0; i < rows; i++)                                                               \
        for (int j = 0; j < columns; j++)                                                          \
          out[((long)c * high + top + i * apart) * wide + left + j * apart] =                      \
              x[((long)c * h + i) * w + j];                                                        \
  }                                                                                                \
                                                                                                   \
  /* panel[channel, i, j][p] = image[channel][y * stride + i * step][x * stride + j * step], where \
     (y, x) is the place `first + p` of the `across` per row; up to LANES numbers more. Its rows   \
     are `apart`. */                                                                               \
  INLINE void panel_##S(T *panel, const T *image, int channels, int high, int wide, int kh,        \
                        int kw, int stride, int step, int across, int first, int number,           \
                        int apart) {                                                               \
    int from[number], to[number], runs = 0;                                                        \
    const int most = stride == 1 ? LANES_##S : 1;                                                  \
    for (int p = 0; p < number;) {                                                                 \
      const int y = (first + p) / across, x = (first + p) % across;                                \
      from[runs] = (y * wide + x) * stride;                                                        \
      to[runs++] = p;                                                                              \
      p += LEAST(most, across - x);                                                                \
    }                                                                                              \
    for (int c = 0; c < channels; c++)                                                             \
      for (int i = 0; i < kh; i++)                                                                 \
        for (int j = 0; j < kw; j++) {                                                             \
          const T *at = image + ((long)c * high + i * step) * wide + j * step;                     \
          for (int r = 0; r < runs; r++) {                                                         \
            if (stride == 1)                                                                       \
              *(vec_##S *)(panel + to[r]) = *(const vec_##S *)(at + from[r]);                      \
            else                                                                                   \
              panel[to[r]] = at[from[r]];                                                          \
          }                                                                                        \
          panel += apart;                                                                          \
        }                                                                                          \
  }                                                                                                \
                                                                                                   \
  /* out[o][first + p] = sum over k of w[o * depth + k] * panel[k][p] + bias[o] */                 \
  INLINE void columns_##S(T *out, const T *panel, const T *w, const T *bias, int outs, int depth,  \
                          long apart, int number, int rows, int positive) {                        \
    const int wide = (number + LANES_##S - 1) / LANES_##S;                                         \
    for (int o = 0; o < outs; o += rows) {                                                         \
      T t[MOST * TILE_##S] __attribute__((aligned(64)));                                           \
      if (o + rows <= outs)                                                                        \
        tile_##S(t, w + (long)o * depth, depth, 1, panel, TILE_##S, depth, rows, wide);            \
      else                                                                                         \
        tile_##S(t, w + (long)o * depth, depth, 1, panel, TILE_##S, depth, outs % rows, wide);     \
      for (int r = 0; r < LEAST(rows, outs - o); r++) {                                            \
        const T more = bias ? bias[o + r] : 0;                                                     \
        for (int p = 0; p < number; p++) {                                                         \
          const T one = t[r * TILE_##S + p] + more;                                                \
          out[(o + r) * apart + p] = positive && one <= 0 ? 0 : one;                               \
        }                                                                                          \
      }                                                                                            \
    }                                                                                              \
  }                                                                                                \
                                                                                                   \
  /* out[n][o] = sum over channels of x[n][channel] with w[o][channel], plus bias[o] */            \
  INLINE void convolve_##S(T *out, const T *x, const T *w, const T *bias, T *room, int images,     \
                           int channels, int h, int wx, int outs, int kh, int kw, int stride,      \
                           int step, int top, int left, int apart, int ho, int wo,                 \
                           int positive, int groups) {                                             \
    const int high = (ho - 1) * stride + (kh - 1) * step + 1;                                      \
    const int wide = (wo - 1) * stride + (kw - 1) * step + 1;                                      \
    const int depth = channels * kh * kw, places = ho * wo;                                        \
    const int rows = outs % 4 == 0 || BYTES < 64 ? 4 : outs % 6 == 0 ? 6 : outs % 5 == 0 ? 5 : 4;  \
    T *image = room + (long)(depth + 1) * TILE_##S;                                                \
    for (int n = 0; n < images; n++) {                                                             \
      T *const mine = out + (long)n * groups * outs * places;                                      \
      framed_##S(image, x + (long)n * groups * channels * h * wx, channels, h, wx, top, left,      \
                 high, wide, apart);                                                               \
      int first = 0;                                                                               \
      for (; first + TILE_##S <= places; first += TILE_##S) {                                      \
        panel_##S(room, image, channels, high, wide, kh, kw, stride, step, wo, first, TILE_##S,    \
                  TILE_##S);                                                                       \
        columns_##S(mine + first, room, w, bias, outs, depth, places, TILE_##S, rows, positive);   \
      }                                                                                            \
      if (places % TILE_##S) {                                                                     \
        panel_##S(room, image, channels, high, wide, kh, kw, stride, step, wo, first,              \
                  places % TILE_##S, TILE_##S);                                                    \
        columns_##S(mine + first, room, w, bias, outs, depth, places, places % TILE_##S, rows,     \
                    positive);                                                                     \
      }                                                                                            \
    }                                                                                              \
  }                                                                                                \
                                                                                                   \
  /* w[channel][o] turned by half, for the slopes of the input */                                  \
  INLINE void turned_##S(T *out, const T *w, int outs, int channels, int kh, int kw) {             \
    for (int c = 0; c < channels; c++)                                                             \
      for (int o = 0; o < outs; o++)                                                               \
        for (int k = 0; k < kh * kw; k++)                                                          \
          out[((long)c * outs + o) * kh * kw + k] =                                                \
              w[((long)o * channels + c) * kh * kw + kh * kw - 1 - k];                             \
  }                                                                                                \
                                                                                                   \
  /* sums[channel, i, j][o] += sum over places of image[channel][y.., x..] * slopes[place][o], for \
     `nc` channels, `ni` rows of a kernel and `wide` vectors of outs */                            \
  INLINE void gathered_##S(T *sums, const T *image, const T *slopes, int nc, int ni, int kh,       \
                           int kw, int plane, int width, int stride, int step, int ho, int wo,     \
                           int padded, int wide) {                                                 \
    vec_##S sum[HELD];                                                                             \
    UNROLL for (int r = 0; r < nc * ni * kw; r++)                                                  \
      UNROLL for (int v = 0; v < wide; v++)                                                        \
        sum[r * wide + v] = *(vec_##S *)(sums + ((r / (ni * kw) * kh * kw + r % (ni * kw)) *       \
                                                 (long)padded + v * LANES_##S));                   \
    for (int y = 0; y < ho; y++) {                                                                 \
      const T *at = image + (long)y * stride * width;                                              \
      for (int x = 0; x < wo; x++, at += stride, slopes += padded) {                               \
        vec_##S row[WIDE];                                                                         \
        UNROLL for (int v = 0; v < wide; v++) {                                                    \
          row[v] = *(const vec_##S *)(slopes + v * LANES_##S);                                     \
          HOLD(row[v]);                                                                            \
        }                                                                                          \
        UNROLL for (int r = 0; r < nc * ni * kw; r++) {                                            \
          const T one = at[(long)r / (ni * kw) * plane + r / kw % ni * step * width +              \
                           r % kw * step];                                                         \
          UNROLL for (int v = 0; v < wide; v++)                                                    \
            sum[r * wide + v] += one * row[v];                                                     \
        }                                                                                          \
      }                                                                                            \
    }                                                                                              \
    UNROLL for (int r = 0; r < nc * ni * kw; r++)                                                  \
      UNROLL for (int v = 0; v < wide; v++)                                                        \
        *(vec_##S *)(sums + ((r / (ni * kw) * kh * kw + r % (ni * kw)) * (long)padded +            \
                             v * LANES_##S)) = sum[r * wide + v];                                  \
  }                                                                                                \
  /* all channels: `nc` at once where whole kernels are, else `ni` rows of a kernel */             \
  INLINE void outs_##S(T *sums, const T *image, const T *slopes, int channels, int kh, int kw,     \
                       int high, int width, int stride, int step, int ho, int wo, int padded,      \
                       int wide) {                                                                 \
    const int room = HELD / (kw * wide) > 0 ? HELD / (kw * wide) : 1;                              \
    const int ni = LEAST(room, kh), nc = ni == kh ? LEAST(room / kh, 8) : 1;                       \
    const int plane = high * width;                                                                \
    int c = 0;                                                                                     \
    for (; c + nc <= channels; c += nc) {                                                          \
      T *to = sums + (long)c * kh * kw * padded;                                                   \
      const T *at = image + (long)c * plane;                                                       \
      int i = 0;                                                                                   \
      for (; i + ni <= kh; i += ni)                                                                \
        gathered_##S(to + (long)i * kw * padded, at + i * step * width, slopes, nc, ni, kh, kw,    \
                     plane, width, stride, step, ho, wo, padded, wide);                            \
      if (kh % ni)                                                                                 \
        gathered_##S(to + (long)i * kw * padded, at + i * step * width, slopes, nc, kh % ni, kh,   \
                     kw, plane, width, stride, step, ho, wo, padded, wide);                        \
    }                                                                                              \
    if (channels % nc)                                                                             \
      gathered_##S(sums + (long)c * kh * kw * padded, image + (long)c * plane, slopes,             \
                   channels % nc, ni, kh, kw, plane, width, stride, step, ho, wo, padded, wide);   \
  }                                                                                                \
                                                                                                   \
  /* sums[k][o] += sum over p of panel[k][p] * slopes[o][p], for a few k and all outs */           \
  INLINE void along_##S(vec_##S *sums, const T *panel, const T *slopes, int outs, int padded,      \
                        int number) {                                                              \
    vec_##S sum[HELD];                                                                             \
    UNROLL for (int r = 0; r < number * outs; r++)                                                 \
      sum[r] = sums[r];                                                                            \
    for (int p = 0; p < padded; p += LANES_##S) {                                                  \
      vec_##S one[3];                                                                              \
      UNROLL for (int k = 0; k < number; k++) {                                                    \
        one[k] = *(const vec_##S *)(panel + (long)k * padded + p);                                 \
        HOLD(one[k]);                                                                              \
      }                                                                                            \
      UNROLL for (int o = 0; o < outs; o++) {                                                      \
        const vec_##S row = *(const vec_##S *)(slopes + (long)o * padded + p);                     \
        UNROLL for (int k = 0; k < number; k++)                                                    \
          sum[k * outs + o] += one[k] * row;                                                       \
      }                                                                                            \
    }                                                                                              \
    UNROLL for (int r = 0; r < number * outs; r++)                                                 \
      sums[r] = sum[r];                                                                            \
  }                                                                                                \
                                                                                                   \
  /* the same where outs are few and places many: vectors along the places */                      \
  INLINE void few_outs_##S(T *out, const T *x, const T *slopes, T *room, int images, int channels, \
                           int h, int wx, int outs, int kh, int kw, int stride, int step, int top, \
                           int left, int ho, int wo, int groups) {                                 \
    const int high = (ho - 1) * stride + (kh - 1) * step + 1;                                      \
    const int width = (wo - 1) * stride + (kw - 1) * step + 1;                                     \
    const int depth = channels * kh * kw, places = ho * wo;                                        \
    const int padded = (places + LANES_##S - 1) / LANES_##S * LANES_##S;                           \
    vec_##S *sums = (vec_##S *)room;                                                               \
    T *mine = room + (long)depth * outs * LANES_##S, *panel = mine + (long)outs * padded;          \
    T *image = panel + (long)depth * padded + LANES_##S;                                           \
    memset(room, 0, (long)depth * outs * sizeof(vec_##S));                                         \
    for (int n = 0; n < images; n++) {                                                             \
      framed_##S(image, x + (long)n * groups * channels * h * wx, channels, h, wx, top, left,      \
                 high, width, 1);                                                                  \
      panel_##S(panel, image, channels, high, width, kh, kw, stride, step, wo, 0, places, padded); \
      for (int o = 0; o < outs; o++)                                                               \
        for (int p = 0; p < padded; p++) {                                                         \
          const T one = slopes[((long)n * groups * outs + o) * places + LEAST(p, places - 1)];     \
          mine[(long)o * padded + p] = p < places ? one : 0;                                       \
        }                                                                                          \
      for (int k = 0; k < depth; k++)                                                              \
        for (int p = places; p < padded; p++)                                                      \
          panel[(long)k * padded + p] = 0;                                                         \
      int k = 0;                                                                                   \
      for (; k + 3 <= depth; k += 3)                                                               \
        along_##S(sums + (long)k * outs, panel + (long)k * padded, mine, outs, padded, 3);         \
      if (depth % 3)                                                                               \
        along_##S(sums + (long)k * outs, panel + (long)k * padded, mine, outs, padded, depth % 3); \
    }                                                                                              \
    for (int o = 0; o < outs; o++)                                                                 \
      for (int k = 0; k < depth; k++)                                                              \
        out[(long)o * depth + k] = total_##S(sums[(long)k * outs + o]);                            \
  }                                                                                                \
  /* out[o][channel][i][j] = sum over n and places of slopes[n][o] * x[n][channel][y.., x..] */    \
  INLINE void correlate_##S(T *out, const T *x, const T *slopes, T *room, int images, int channels,\
                            int h, int wx, int outs, int kh, int kw, int stride, int step, int top,\
                            int left, int ho, int wo, int groups) {                                \
    const int high = (ho - 1) * stride + (kh - 1) * step + 1;                                      \
    const int width = (wo - 1) * stride + (kw - 1) * step + 1;                                     \
    const int depth = channels * kh * kw, places = ho * wo;                                        \
    const int padded = (outs + LANES_##S - 1) / LANES_##S * LANES_##S;                             \
    const int across = LEAST(WIDE, HELD / kw); /* vectors of outs at once */                       \
    const int rest = padded / LANES_##S % across;                                                  \
    if (outs <= 8 && outs * 3 <= HELD && places >= 8 * LANES_##S) {                                \
      few_outs_##S(out, x, slopes, room, images, channels, h, wx, outs, kh, kw, stride, step, top, \
                   left, ho, wo, groups);                                                          \
      return;                                                                                      \
    }                                                                                              \
    T *sums = room, *by_place = sums + (long)depth * padded;                                       \
    T *image = by_place + (long)places * padded;                                                   \
    memset(room, 0, (long)(depth + places) * padded * sizeof(T));                                  \
    for (int n = 0; n < images; n++) {                                                             \
      framed_##S(image, x + (long)n * groups * channels * h * wx, channels, h, wx, top, left,      \
                 high, width, 1);                                                                  \
      for (int first = 0; first < places; first += LANES_##S)                                      \
        for (int o = 0; o < outs; o++)                                                             \
          for (int p = first; p < LEAST(first + LANES_##S, places); p++)                           \
            by_place[(long)p * padded + o] = slopes[((long)n * groups * outs + o) * places + p];   \
      int o = 0;                                                                                   \
      for (; o + across * LANES_##S <= padded; o += across * LANES_##S)                            \
        outs_##S(sums + o, image, by_place + o, channels, kh, kw, high, width, stride, step, ho,   \
                 wo, padded, across);                                                              \
      if (rest)                                                                                    \
        outs_##S(sums + o, image, by_place + o, channels, kh, kw, high, width, stride, step, ho,   \
                 wo, padded, rest);                                                                \
    }                                                                                              \
    for (int o = 0; o < outs; o++)                                                                 \
      for (int k = 0; k < depth; k++)                                                              \
        out[(long)o * depth + k] = sums[(long)k * padded + o];                                     \
  }

#define WINDOW UNROLL for (int i = 0; i < kh; i++) UNROLL for (int j = 0; j < kw; j++)

/* Pools: `planes` images of h x w, windows of kh x kw that lie sh and sw apart, all inside and
   without numbers in common.

   Windows of 2 x 2 that fill the images are taken LANES at once. Where a row has fewer, they
   reach into the next rows, which are written later; SAFE are the rows after which there is room.
*/
#if BYTES == 64
#define EVEN_f 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODD_f 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#define LOW_f 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH_f 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif BYTES == 32
#define EVEN_f 0, 2, 4, 6, 8, 10, 12, 14
#define ODD_f 1, 3, 5, 7, 9, 11, 13, 15
#define LOW_f 0, 8, 1, 9, 2, 10, 3, 11
#define HIGH_f 4, 12, 5, 13, 6, 14, 7, 15
#else
#define EVEN_f 0, 2, 4, 6
#define ODD_f 1, 3, 5, 7
#define LOW_f 0, 4, 1, 5
#define HIGH_f 2, 6, 3, 7
#endif
#if BYTES == 64
#define EVEN_d 0, 2, 4, 6, 8, 10, 12, 14
#define ODD_d 1, 3, 5, 7, 9, 11, 13, 15
#define LOW_d 0, 8, 1, 9, 2, 10, 3, 11
#define HIGH_d 4, 12, 5, 13, 6, 14, 7, 15
#elif BYTES == 32
#define EVEN_d 0, 2, 4, 6
#define ODD_d 1, 3, 5, 7
#define LOW_d 0, 4, 1, 5
#define HIGH_d 2, 6, 3, 7
#else
#define EVEN_d 0, 2
#define ODD_d 1, 3
#define LOW_d 0, 2
#define HIGH_d 1, 3
#endif
#define FILLED (kh == 2 && kw == 2 && sh == 2 && sw == 2 && h == ho * 2 && w == wo * 2)
#define SAFE(S) (FILLED ? planes * ho - LANES_##S / wo - 1 : 0)
/* where the next windows of a row begin; the last ones are taken so that they end with the row */
#define NEXT(S)                                                                                    \
  (p < wo - LANES_##S && p + LANES_##S > wo - LANES_##S ? wo - LANES_##S : p + LANES_##S)

#define POOLS(T, S)                                                                                \
  typedef __typeof__((vec_##S){0} < (vec_##S){0}) flags_##S;                                       \
  INLINE vec_##S picked_##S(flags_##S flags, vec_##S yes, vec_##S no) {                            \
    return (vec_##S)((flags & (flags_##S)yes) | (~flags & (flags_##S)no));                         \
  }                                                                                                \
  INLINE vec_##S strided_##S(const T *at, int odd) {                                               \
    const vec_##S one = *(const vec_##S *)at, two = *(const vec_##S *)(at + LANES_##S);            \
    if (odd)                                                                                       \
      return __builtin_shufflevector(one, two, ODD_##S);                                           \
    return __builtin_shufflevector(one, two, EVEN_##S);                                            \
  }                                                                                                \
                                                                                                   \
  /* the largest numbers of LANES windows of 2 x 2, and whether the last three are larger than     \
     those before them */                                                                          \
  INLINE vec_##S four_##S(const T *at, int w, flags_##S *later) {                                  \
    vec_##S most = strided_##S(at, 0);                                                             \
    UNROLL for (int k = 1; k < 4; k++) {                                                           \
      const vec_##S one = strided_##S(at + k / 2 * w, k % 2);                                      \
      later[k - 1] = (one > most) | (one != one);                                                  \
      most = picked_##S(later[k - 1], one, most);                                                  \
    }                                                                                              \
    return most;                                                                                   \
  }                                                                                                \
                                                                                                   \
  INLINE void largest_##S(T *out, const T *x, long planes, int h, int w, int kh, int kw, int sh,   \
                          int sw, int ho, int wo) {                                                \
    for (long n = 0; n < planes * ho; n++) {                                                       \
      const T *at = x + n / ho * h * w + n % ho * sh * w;                                          \
      if (n < SAFE(S)) {                                                                           \
        flags_##S later[3];                                                                        \
        for (int p = 0; p < wo; p = NEXT(S))                                                       \
          *(vec_##S *)(out + n * wo + p) = four_##S(at + p * 2, w, later);                         \
      } else {                                                                                     \
        for (int p = 0; p < wo; p++) {                                                             \
          T most = -INFINITY;                                                                      \
          WINDOW {                                                                                 \
            const T one = at[i * w + p * sw + j];                                                  \
            most = one > most || one != one ? one : most;                                          \
          }                                                                                        \
          out[n * wo + p] = most;                                                                  \
        }                                                                                          \
      }                                                                                            \
    }                                                                                              \
  }                                                                                                \
                                                                                                   \
  /* slopes go to the first of the largest numbers; none do where that is not `positive` */        \
  INLINE void largest_slopes_##S(T *out, const T *slopes, const T *x, long planes, int h, int w,   \
                                 int kh, int kw, int sh, int sw, int ho, int wo, int positive) {   \
    if (!FILLED)                                                                                   \
      memset(out, 0, planes * h * w * sizeof(T));                                                  \
    for (long n = 0; n < planes * ho; n++) {                                                       \
      const long start = n / ho * h * w + n % ho * sh * w;                                         \
      if (n < SAFE(S)) {                                                                           \
        for (int p = 0; p < wo; p = NEXT(S)) {                                                     \
          flags_##S later[3];                                                                      \
          const vec_##S most = four_##S(x + start + p * 2, w, later);                              \
          flags_##S slope = (flags_##S)(*(const vec_##S *)(slopes + n * wo + p));                  \
          if (positive)                                                                            \
            slope &= ~(most <= 0);                                                                 \
          const vec_##S to[4] = {(vec_##S)(slope & ~(later[0] | later[1] | later[2])),             \
                                 (vec_##S)(slope & later[0] & ~(later[1] | later[2])),             \
                                 (vec_##S)(slope & later[1] & ~later[2]),                          \
                                 (vec_##S)(slope & later[2])};                                     \
          UNROLL for (int i = 0; i < 2; i++) {                                                     \
            T *at = out + start + i * w + p * 2;                                                   \
            *(vec_##S *)at = __builtin_shufflevector(to[2 * i], to[2 * i + 1], LOW_##S);           \
            *(vec_##S *)(at + LANES_##S) =                                                         \
                __builtin_shufflevector(to[2 * i], to[2 * i + 1], HIGH_##S);                       \
          }                                                                                        \
        }                                                                                          \
      } else {                                                                                     \
        const T *at = x + start;                                                                   \
        for (int p = 0; p < wo; p++) {                                                             \
          T most = -INFINITY;                                                                      \
          int where = 0;                                                                           \
          WINDOW {                                                                                 \
            const T one = at[i * w + p * sw + j];                                                  \
            const int more = one > most || one != one;                                             \
            most = more ? one : most;                                                              \
            where = more ? i * kw + j : where;                                                     \
          }                                                                                        \
          const T given = slopes[n * wo + p];                                                      \
          const T slope = positive && most <= 0 ? 0 : given;                                       \
          WINDOW out[start + i * w + p * sw + j] = where == i * kw + j ? slope : 0;                \
        }                                                                                          \
      }                                                                                            \
    }                                                                                              \
  }                                                                                                \
                                                                                                   \
  INLINE void mean_##S(T *out, const T *x, long planes, int h, int w, int kh, int kw, int sh,      \
                       int sw, int ho, int wo) {                                                   \
    for (long n = 0; n < planes * ho; n++) {                                                       \
      const T *at = x + n / ho * h * w + n % ho * sh * w;                                          \
      for (int p = 0; p < wo; p++) {                                                               \
        T sum = 0;                                                                                 \
        WINDOW sum += at[i * w + p * sw + j];                                                      \
        out[n * wo + p] = sum / (kh * kw);                                                         \
      }                                                                                            \
    }                                                                                              \
  }                                                                                                \
                                                                                                   \
  INLINE void mean_slopes_##S(T *out, const T *slopes, long planes, int h, int w, int kh, int kw,  \
                              int sh, int sw, int ho, int wo) {                                    \
    memset(out, 0, planes * h * w * sizeof(T));                                                    \
    for (long n = 0; n < planes * ho; n++) {                                                       \
      T *to = out + n / ho * h * w + n % ho * sh * w;                                              \
      for (int p = 0; p < wo; p++)                                                                 \
        WINDOW to[i * w + p * sw + j] = slopes[n * wo + p] / (kh * kw);                            \
    }                                                                                              \
  }

CONVOLUTIONS(float, f)
CONVOLUTIONS(double, d)
POOLS(float, f)
POOLS(double, d)
