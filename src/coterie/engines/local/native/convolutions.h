/* Convolutions of small images, as products of small matrices.

   The sizes are constants where these functions are used; images lie in [n][channel][y][x].
*/
#define UNROLL _Pragma("GCC unroll 32")
#define HELD (BYTES == 64 ? 25 : 12) /* vectors that are summed at once */
#define LEAST(a, b) ((a) < (b) ? (a) : (b))
/* of a tile, so that few are left over */
#define CHOOSE_ROWS(n) ((n) % 4 == 0 || BYTES < 64 ? 4 : (n) % 6 == 0 ? 6 : (n) % 5 == 0 ? 5 : 4)

/* an image within zeros */
INLINE void frame_image(real *out, const real *x, int channels, int h, int w, int top, int left,
                        int high, int wide) {
  /* strides may leave out the last rows and columns */
  const int rows = LEAST(h, high - top), columns = LEAST(w, wide - left);
  memset(out, 0, ((long)channels * high * wide + LANES) * sizeof(real));
  for (int c = 0; c < channels; c++)
    for (int i = 0; i < rows; i++)
      for (int j = 0; j < columns; j++)
        out[((long)c * high + top + i) * wide + left + j] = x[((long)c * h + i) * w + j];
}

/* panel[channel, i, j][p] = image[channel][y * stride + i * step][x * stride + j * step], where
   (y, x) is the place `first + p` of the `across` per row and of the `places` per image; up to
   LANES numbers more. Its rows are `apart`, the images `far`. */
INLINE void fill_panel(real *panel, const real *image, long far, int channels, int high, int wide,
                       int kh, int kw, int stride, int step, int across, int places, int first,
                       int number, int apart) {
  long from[number];
  int to[number], runs = 0;
  const int most = stride == 1 ? LANES : 1;
  for (int p = 0; p < number;) {
    const int place = (first + p) % places, y = place / across, x = place % across;
    from[runs] = (first + p) / places * far + (y * wide + x) * stride;
    to[runs++] = p;
    p += LEAST(most, across - x);
  }
  for (int c = 0; c < channels; c++)
    for (int i = 0; i < kh; i++)
      for (int j = 0; j < kw; j++) {
        const real *at = image + ((long)c * high + i * step) * wide + j * step;
        for (int r = 0; r < runs; r++) {
          if (stride == 1)
            *(vec *)(panel + to[r]) = *(const vec *)(at + from[r]);
          else
            panel[to[r]] = at[from[r]];
        }
        panel += apart;
      }
}

/* out[n][o][place] = sum over k of w[o * depth + k] * panel[k][p] + bias[o], for the columns from
   `first` on, of which `places` are of one image; images are `far` apart */
INLINE void multiply_columns(real *out, long far, const real *panel, const real *w,
                             const real *bias, int outs, int depth, int places, int first,
                             int number, int rows, int positive) {
  const int wide = (number + LANES - 1) / LANES;
  const int one_image = first % places + number <= places;
  for (int o = 0; o < outs; o += rows) {
    real t[MOST * TILE] __attribute__((aligned(64)));
    if (o + rows <= outs)
      multiply_tile(t, w + (long)o * depth, depth, 1, panel, TILE, depth, rows, wide);
    else
      multiply_tile(t, w + (long)o * depth, depth, 1, panel, TILE, depth, outs % rows, wide);
    for (int r = 0; r < LEAST(rows, outs - o); r++) {
      const real more = bias ? bias[o + r] : 0;
      real *to = out + first / places * far + (long)(o + r) * places + first % places;
      real *into = one_image ? to : t + r * TILE;
      for (int p = 0; p < number; p++) {
        const real one = t[r * TILE + p] + more;
        into[p] = positive && one <= 0 ? 0 : one;
      }
      for (int p = one_image ? number : 0, begin = first % places; p < number; begin = 0) {
        const int some = LEAST(number - p, places - begin);
        memcpy(to, t + r * TILE + p, some * sizeof(real));
        to += far - begin;
        p += some;
      }
    }
  }
}

/* out[n][o] = sum over channels of x[n][channel] with w[o][channel], plus bias[o], `many` images
   at a time */
INLINE void convolve(real *out, const real *x, const real *w, const real *bias, real *room,
                     int images, int many, int channels, int h, int wx, int outs, int kh, int kw,
                     int stride, int step, int top, int left, int ho, int wo, int positive,
                     int groups) {
  const int high = (ho - 1) * stride + (kh - 1) * step + 1;
  const int wide = (wo - 1) * stride + (kw - 1) * step + 1;
  const int depth = channels * kh * kw, places = ho * wo, columns = many * places;
  const int rows = CHOOSE_ROWS(outs);
  const long far = (long)groups * outs * places, plane = (long)channels * high * wide;
  real *image = room + (long)(depth + 1) * TILE;
  for (int n = 0; n < images; n += many) {
    real *const mine = out + n * far;
    for (int k = 0; k < many; k++)
      frame_image(image + k * plane, x + (long)(n + k) * groups * channels * h * wx, channels, h,
                  wx, top, left, high, wide);
    int first = 0;
    for (; first + TILE <= columns; first += TILE) {
      fill_panel(room, image, plane, channels, high, wide, kh, kw, stride, step, wo, places, first,
                 TILE, TILE);
      multiply_columns(mine, far, room, w, bias, outs, depth, places, first, TILE, rows, positive);
    }
    if (columns % TILE) {
      fill_panel(room, image, plane, channels, high, wide, kh, kw, stride, step, wo, places, first,
                 columns % TILE, TILE);
      multiply_columns(mine, far, room, w, bias, outs, depth, places, first, columns % TILE, rows,
                       positive);
    }
  }
}

/* image[n][channel][y * stride + i * step][x * stride + j * step] += sum over outs of w[o][channel,
   i, j] * panel[o][place], for the places of `number` rows of `length`, which lie `pitch` apart; a
   tile of every (i, j) of some channels is added when it is there, so that no zero between or
   around them is multiplied */
INLINE void spread_rows(real *image, long far, const real *panel, const real *w, int channels,
                        int outs, int kh, int kw, int stride, int step, int high, int wide, int ho,
                        int first, int number, int from, int length, int pitch) {
  const int across = (number * pitch + LANES - 1) / LANES;
  const int depth = channels * kh * kw, rows = CHOOSE_ROWS(channels);
  real *to[number];
  for (int q = 0; q < number; q++)
    to[q] = image + (first + q) / ho * far + (first + q) % ho * stride * wide + from * stride;
  for (int c = 0; c < channels; c += rows)
    for (int k = 0; k < kh * kw; k++) {
      real t[MOST * TILE] __attribute__((aligned(64)));
      const real *at = w + (long)c * kh * kw + k;
      const long by = k / kw * step * wide + k % kw * step;
      if (c + rows <= channels)
        multiply_tile(t, at, kh * kw, depth, panel, TILE, outs, rows, across);
      else
        multiply_tile(t, at, kh * kw, depth, panel, TILE, outs, channels % rows, across);
      for (int r = 0; r < LEAST(rows, channels - c); r++)
        for (int q = 0; q < number; q++) {
          real *mine = to[q] + (long)(c + r) * high * wide + by;
          const real *one = t + r * TILE + q * pitch;
          if (pitch % LANES == 0 && stride == 1)
            for (int x = 0; x < pitch; x += LANES)
              *(vec *)(mine + x) += *(const vec *)(one + x);
          else
            for (int x = 0; x < length; x++)
              mine[x * stride] += one[x];
        }
    }
}

/* the gradients by the images that a convolution read, `many` images at a time */
INLINE void spread_kernels(real *out, const real *gradients, const real *w, real *room, int images,
                           int many, int channels, int h, int wx, int outs, int kh, int kw,
                           int stride, int step, int top, int left, int ho, int wo, int groups) {
  const int length = LEAST(wo, TILE), whole = (length + LANES - 1) / LANES * LANES;
  const int pitch = TILE / whole == TILE / length ? whole : length, number = TILE / pitch;
  const int high = (ho - 1) * stride + (kh - 1) * step + 1;
  const int wide = (wo - 1) * stride + (kw - 1) * step + 1 + pitch - length;
  const int framed = top || left || high != h || wide != wx;
  const long plane = (long)h * wx, apart = groups * channels * plane;
  const long far = framed ? (long)channels * high * wide : apart;
  real *panel = room;
  memset(panel, 0, (long)outs * TILE * sizeof(real));
  for (int n = 0; n < images; n += many) {
    real *mine = out + n * apart, *image = framed ? room + (long)outs * TILE : mine;
    for (int k = 0; k < many; k++)
      memset(image + k * far, 0, (long)channels * high * wide * sizeof(real));
    for (int first = 0; first < many * ho; first += number)
      for (int from = 0; from < wo; from += length) {
        const int some = LEAST(number, many * ho - first), part = LEAST(length, wo - from);
        for (int o = 0; o < outs; o++)
          for (int q = 0; q < some; q++) {
            const long row = (n + (first + q) / ho) * (long)groups * outs + o;
            const real *at = gradients + (row * ho + (first + q) % ho) * wo + from;
            if (part == length)
              memcpy(panel + (long)o * TILE + q * pitch, at, length * sizeof(real));
            else
              memcpy(panel + (long)o * TILE, at, wo % length * sizeof(real));
          }
        if (part < length)
          spread_rows(image, far, panel, w, channels, outs, kh, kw, stride, step, high, wide, ho,
                      first, 1, from, wo % length, wo % length);
        else if (some == number)
          spread_rows(image, far, panel, w, channels, outs, kh, kw, stride, step, high, wide, ho,
                      first, number, from, length, pitch);
        else
          spread_rows(image, far, panel, w, channels, outs, kh, kw, stride, step, high, wide, ho,
                      first, many * ho % number, from, length, pitch);
      }
    if (!framed)
      continue;
    const int rows = LEAST(h, high - top), columns = LEAST(wx, wide - left);
    for (int k = 0; k < many; k++)
      for (int c = 0; c < channels; c++) {
        real *to = mine + k * apart + c * plane;
        if (rows < h || columns < wx)
          memset(to, 0, plane * sizeof(real));
        for (int y = 0; y < rows; y++)
          for (int x = 0; x < columns; x++)
            to[y * wx + x] = image[k * far + ((long)c * high + top + y) * wide + left + x];
      }
  }
}

/* sums[channel, i, j][o] += sum over places of image[channel][y.., x..] * gradients[place][o], for
   `nc` channels, `ni` rows of a kernel and `wide` vectors of outs */
INLINE void add_kernels(real *sums, const real *image, const real *gradients, int nc, int ni,
                        int kh, int kw, int plane, int width, int stride, int step, int ho,
                        int wo, int padded, int wide) {
  vec sum[HELD];
  UNROLL for (int r = 0; r < nc * ni * kw; r++)
    UNROLL for (int v = 0; v < wide; v++)
      sum[r * wide + v] = *(vec *)(sums + ((r / (ni * kw) * kh * kw + r % (ni * kw)) *
                                           (long)padded + v * LANES));
  for (int y = 0; y < ho; y++) {
    const real *at = image + (long)y * stride * width;
    for (int x = 0; x < wo; x++, at += stride, gradients += padded) {
      vec row[WIDE];
      UNROLL for (int v = 0; v < wide; v++) {
        row[v] = *(const vec *)(gradients + v * LANES);
        HOLD(row[v]);
      }
      UNROLL for (int r = 0; r < nc * ni * kw; r++) {
        const real one = at[(long)r / (ni * kw) * plane + r / kw % ni * step * width +
                         r % kw * step];
        UNROLL for (int v = 0; v < wide; v++)
          sum[r * wide + v] += one * row[v];
      }
    }
  }
  UNROLL for (int r = 0; r < nc * ni * kw; r++)
    UNROLL for (int v = 0; v < wide; v++)
      *(vec *)(sums + ((r / (ni * kw) * kh * kw + r % (ni * kw)) * (long)padded + v *
                       LANES)) = sum[r * wide + v];
}
/* all channels: `nc` at once where whole kernels are, else `ni` rows of a kernel */
INLINE void add_outs(real *sums, const real *image, const real *gradients, int channels, int kh,
                     int kw, int high, int width, int stride, int step, int ho, int wo,
                     int padded, int wide) {
  const int room = HELD / (kw * wide) > 0 ? HELD / (kw * wide) : 1;
  const int ni = LEAST(room, kh), nc = ni == kh ? LEAST(room / kh, 8) : 1;
  const int plane = high * width;
  int c = 0;
  for (; c + nc <= channels; c += nc) {
    real *to = sums + (long)c * kh * kw * padded;
    const real *at = image + (long)c * plane;
    int i = 0;
    for (; i + ni <= kh; i += ni)
      add_kernels(to + (long)i * kw * padded, at + i * step * width, gradients, nc, ni, kh, kw,
                  plane, width, stride, step, ho, wo, padded, wide);
    if (kh % ni)
      add_kernels(to + (long)i * kw * padded, at + i * step * width, gradients, nc, kh % ni, kh, kw,
                  plane, width, stride, step, ho, wo, padded, wide);
  }
  if (channels % nc)
    add_kernels(sums + (long)c * kh * kw * padded, image + (long)c * plane, gradients,
                channels % nc, ni, kh, kw, plane, width, stride, step, ho, wo, padded, wide);
}

/* sums[k][o] += sum over p of panel[k][p] * gradients[o][p], for a few k and all outs */
INLINE void add_places(vec *sums, const real *panel, const real *gradients, int outs, int padded,
                       int number) {
  vec sum[HELD];
  UNROLL for (int r = 0; r < number * outs; r++)
    sum[r] = sums[r];
  for (int p = 0; p < padded; p += LANES) {
    vec one[3];
    UNROLL for (int k = 0; k < number; k++) {
      one[k] = *(const vec *)(panel + (long)k * padded + p);
      HOLD(one[k]);
    }
    UNROLL for (int o = 0; o < outs; o++) {
      const vec row = *(const vec *)(gradients + (long)o * padded + p);
      UNROLL for (int k = 0; k < number; k++)
        sum[k * outs + o] += one[k] * row;
    }
  }
  UNROLL for (int r = 0; r < number * outs; r++)
    sums[r] = sum[r];
}

/* the same where outs are few and places many: vectors along the places */
INLINE void correlate_few(real *out, const real *x, const real *gradients, real *room, int images,
                          int channels, int h, int wx, int outs, int kh, int kw, int stride,
                          int step, int top, int left, int ho, int wo, int groups) {
  const int high = (ho - 1) * stride + (kh - 1) * step + 1;
  const int width = (wo - 1) * stride + (kw - 1) * step + 1;
  const int depth = channels * kh * kw, places = ho * wo;
  const int padded = (places + LANES - 1) / LANES * LANES;
  vec *sums = (vec *)room;
  real *mine = room + (long)depth * outs * LANES, *panel = mine + (long)outs * padded;
  real *image = panel + (long)depth * padded + LANES;
  memset(room, 0, (long)depth * outs * sizeof(vec));
  for (int n = 0; n < images; n++) {
    frame_image(image, x + (long)n * groups * channels * h * wx, channels, h, wx, top, left, high,
                width);
    fill_panel(panel, image, 0, channels, high, width, kh, kw, stride, step, wo, places, 0, places,
               padded);
    for (int o = 0; o < outs; o++)
      for (int p = 0; p < padded; p++) {
        const real one = gradients[((long)n * groups * outs + o) * places + LEAST(p, places - 1)];
        mine[(long)o * padded + p] = p < places ? one : 0;
      }
    for (int k = 0; k < depth; k++)
      for (int p = places; p < padded; p++)
        panel[(long)k * padded + p] = 0;
    int k = 0;
    for (; k + 3 <= depth; k += 3)
      add_places(sums + (long)k * outs, panel + (long)k * padded, mine, outs, padded, 3);
    if (depth % 3)
      add_places(sums + (long)k * outs, panel + (long)k * padded, mine, outs, padded, depth % 3);
  }
  for (int o = 0; o < outs; o++)
    for (int k = 0; k < depth; k++)
      out[(long)o * depth + k] = add_lanes(sums[(long)k * outs + o]);
}
/* out[p][o] = x[o][p] of LANES outs and places: every round lays two halves of rows between each
   other */
INLINE void turn_square(real *out, long out_apart, const real *x, long x_apart) {
  vec rows[LANES], next[LANES];
  UNROLL for (int r = 0; r < LANES; r++)
    rows[r] = *(const vec *)(x + r * x_apart);
  UNROLL for (int round = 1; round < LANES; round *= 2) {
    UNROLL for (int r = 0; r < LANES / 2; r++) {
      next[2 * r] = __builtin_shufflevector(rows[r], rows[r + LANES / 2], LOW);
      next[2 * r + 1] = __builtin_shufflevector(rows[r], rows[r + LANES / 2], HIGH);
    }
    UNROLL for (int r = 0; r < LANES; r++)
      rows[r] = next[r];
  }
  UNROLL for (int r = 0; r < LANES; r++)
    *(vec *)(out + r * out_apart) = rows[r];
}

/* out[c][r] = x[r][c] of so many rows and columns; the last square may lie over the one before */
INLINE void turn_plane(real *out, long out_apart, const real *x, long x_apart, int rows,
                       int columns) {
  if (rows < LANES || columns < LANES) {
    for (int c = 0; c < columns; c++)
      for (int r = 0; r < rows; r++)
        out[c * out_apart + r] = x[r * x_apart + c];
    return;
  }
  for (int r = 0; r < rows; r += LANES)
    for (int c = 0; c < columns; c += LANES) {
      const int i = LEAST(r, rows - LANES), j = LEAST(c, columns - LANES);
      turn_square(out + j * out_apart + i, out_apart, x + i * x_apart + j, x_apart);
    }
}

/* out[o][channel][i][j] = sum over n and places of gradients[n][o] * x[n][channel][y.., x..] */
INLINE void correlate(real *out, const real *x, const real *gradients, real *room, int images,
                      int channels, int h, int wx, int outs, int kh, int kw, int stride, int step,
                      int top, int left, int ho, int wo, int groups) {
  const int high = (ho - 1) * stride + (kh - 1) * step + 1;
  const int width = (wo - 1) * stride + (kw - 1) * step + 1;
  const int depth = channels * kh * kw, places = ho * wo;
  const int padded = (outs + LANES - 1) / LANES * LANES;
  const int across = LEAST(WIDE, HELD / kw); /* vectors of outs at once */
  const int rest = padded / LANES % across;
  if (outs <= 8 && outs * 3 <= HELD && places >= 8 * LANES) {
    correlate_few(out, x, gradients, room, images, channels, h, wx, outs, kh, kw, stride, step, top,
                  left, ho, wo, groups);
    return;
  }
  real *sums = room, *by_place = sums + (long)depth * padded;
  real *image = by_place + (long)places * padded;
  memset(room, 0, (long)(depth + places) * padded * sizeof(real));
  for (int n = 0; n < images; n++) {
    frame_image(image, x + (long)n * groups * channels * h * wx, channels, h, wx, top, left, high,
                width);
    turn_plane(by_place, padded, gradients + (long)n * groups * outs * places, places, outs, places);
    int o = 0;
    for (; o + across * LANES <= padded; o += across * LANES)
      add_outs(sums + o, image, by_place + o, channels, kh, kw, high, width, stride, step, ho, wo,
               padded, across);
    if (rest)
      add_outs(sums + o, image, by_place + o, channels, kh, kw, high, width, stride, step, ho, wo,
               padded, rest);
  }
  for (int o = 0; o < outs; o++)
    for (int k = 0; k < depth; k++)
      out[(long)o * depth + k] = sums[(long)k * padded + o];
}

/* Gradients of which few are not zero, as a pool gives them that leaves one number of a window: only
   those are multiplied, with vectors of channels, which lie side by side in an image.
*/
#define NEAR 8192 /* numbers of an image that the nearest cache holds beside the rest */
/* rows of places whose part of an image it holds */
#define CHOOSE_BAND (NEAR / (wide * padded) > (kh - 1) * step + stride                              \
                         ? LEAST(ho, (NEAR / (wide * padded) - (kh - 1) * step - 1) / stride + 1)     \
                         : 1)

/* whether the processor, and a compiler by this name, moves the numbers of a vector together */
#if LANES == 16 && defined(__has_builtin)
#if __has_builtin(__builtin_ia32_compresssi512_mask)
#define COMPRESSES
#endif
#endif

/* the gradients that are not zero of those from `first` on, and where in an image their kernels
   begin; how many */
INLINE int find_few(int *at, real *values, const real *gradients, int first, int places, int wo,
                    int stride, int wide) {
  int number = 0, p = first;
#ifdef COMPRESSES
  typedef int32_t whole __attribute__((vector_size(64), aligned(4), may_alias));
  const whole next = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  for (; p + LANES <= first + places; p += LANES) {
    const uint16_t some = __builtin_ia32_cmpps512_mask(*(const vec *)(gradients + p), (vec){0}, 4,
                                                       UINT16_MAX, 4);
    *(whole *)(at + number) =
        (whole)__builtin_ia32_compresssi512_mask(next + p, (whole){0}, some);
    number += __builtin_popcount(some);
  }
#endif
  for (; p < first + places; p++) {
    at[number] = p;
    number += gradients[p] != 0;
  }
  for (int k = 0; k < number; k++) {
    const int place = at[k];
    values[k] = gradients[place];
    at[k] = (place / wo * wide + place % wo) * stride;
  }
  return number;
}

/* w[i][j][c] += gradient * image[y + i][x + j][c], or if `back` the other way round, for `ni` rows of
   a kernel and `nc` vectors of channels */
INLINE void multiply_few(real *image, real *w, const int *at, const real *values, int number,
                         int ni, int kw, int nc, int step, int wide, int padded, int back) {
  vec sum[HELD];
  UNROLL for (int r = 0; r < ni * kw; r++)
    UNROLL for (int v = 0; v < nc; v++)
      sum[r * nc + v] = *(const vec *)(w + r * padded + v * LANES);
  for (int k = 0; k < number; k++) {
    real *const mine = image + (long)at[k] * padded;
    UNROLL for (int r = 0; r < ni * kw; r++)
      UNROLL for (int v = 0; v < nc; v++) {
        vec *const one = (vec *)(mine + (r / kw * wide + r % kw) * step * padded + v * LANES);
        if (back)
          *one += values[k] * sum[r * nc + v];
        else
          sum[r * nc + v] += values[k] * *one;
      }
  }
  if (!back)
    UNROLL for (int r = 0; r < ni * kw; r++)
      UNROLL for (int v = 0; v < nc; v++)
        *(vec *)(w + r * padded + v * LANES) = sum[r * nc + v];
}
/* the same for whole kernels w[o] and an image, of which as much as is near at a time */
INLINE void multiply_sparse(real *image, real *w, const real *gradients, int outs, int kh, int kw,
                            int stride, int step, int wide, int padded, int ho, int wo, int back) {
  const int band = CHOOSE_BAND, ni = LEAST(kh, HELD / kw), vectors = padded / LANES;
  const int nc = vectors % (HELD / (ni * kw)) == 0 ? HELD / (ni * kw) : 1;
  int at[band * wo + LANES];
  real values[band * wo];
  for (int y = 0; y < ho; y += band)
    for (int o = 0; o < outs; o++) {
      const int number = find_few(at, values, gradients + (long)o * ho * wo, y * wo,
                                  LEAST(band, ho - y) * wo, wo, stride, wide);
      for (int v = 0; v < vectors; v += nc) {
        real *to = image + v * LANES, *mine = w + (long)o * kh * kw * padded + v * LANES;
        int i = 0;
        for (; i + ni <= kh; i += ni)
          multiply_few(to + (long)i * step * wide * padded, mine + (long)i * kw * padded, at,
                       values, number, ni, kw, nc, step, wide, padded, back);
        if (kh % ni)
          multiply_few(to + (long)i * step * wide * padded, mine + (long)i * kw * padded, at,
                       values, number, kh % ni, kw, nc, step, wide, padded, back);
      }
    }
}

/* the same as `correlate` */
INLINE void correlate_sparse(real *out, const real *x, const real *gradients, real *room,
                             int images, int channels, int h, int wx, int outs, int kh, int kw,
                             int stride, int step, int top, int left, int ho, int wo, int groups) {
  const int high = (ho - 1) * stride + (kh - 1) * step + 1;
  const int wide = (wo - 1) * stride + (kw - 1) * step + 1;
  const int padded = (channels + LANES - 1) / LANES * LANES, kernel = kh * kw, plane = h * wx;
  const int rows = LEAST(h, high - top), columns = LEAST(wx, wide - left);
  real *sums = room, *image = sums + (long)outs * kernel * padded;
  memset(room, 0, ((long)outs * kernel + high * wide) * padded * sizeof(real));
  for (int n = 0; n < images; n++) {
    const real *mine = x + (long)n * groups * channels * plane;
    for (int y = 0; y < rows; y++)
      turn_plane(image + ((long)(top + y) * wide + left) * padded, padded, mine + y * wx, plane,
                 channels, columns);
    multiply_sparse(image, sums, gradients + (long)n * groups * outs * ho * wo, outs, kh, kw,
                    stride, step, wide, padded, ho, wo, 0);
  }
  for (int o = 0; o < outs; o++)
    turn_plane(out + (long)o * channels * kernel, kernel, sums + (long)o * kernel * padded, padded,
               kernel, channels);
}
/* the same as `spread_kernels` */
INLINE void spread_sparse(real *out, const real *gradients, const real *w, real *room, int images,
                          int channels, int h, int wx, int outs, int kh, int kw, int stride,
                          int step, int top, int left, int ho, int wo, int groups) {
  const int high = (ho - 1) * stride + (kh - 1) * step + 1;
  const int wide = (wo - 1) * stride + (kw - 1) * step + 1;
  const int padded = (channels + LANES - 1) / LANES * LANES, kernel = kh * kw, plane = h * wx;
  const int rows = LEAST(h, high - top), columns = LEAST(wx, wide - left);
  real *turned = room, *image = turned + (long)outs * kernel * padded;
  memset(turned, 0, (long)outs * kernel * padded * sizeof(real));
  for (int o = 0; o < outs; o++)
    turn_plane(turned + (long)o * kernel * padded, padded, w + (long)o * channels * kernel, kernel,
               channels, kernel);
  for (int n = 0; n < images; n++) {
    real *mine = out + (long)n * groups * channels * plane;
    memset(image, 0, (long)high * wide * padded * sizeof(real));
    multiply_sparse(image, turned, gradients + (long)n * groups * outs * ho * wo, outs, kh, kw,
                    stride, step, wide, padded, ho, wo, 1);
    if (rows < h || columns < wx)
      for (int c = 0; c < channels; c++)
        memset(mine + (long)c * plane, 0, plane * sizeof(real));
    for (int y = 0; y < rows; y++)
      turn_plane(mine + y * wx, plane, image + ((long)(top + y) * wide + left) * padded, padded,
                 columns, channels);
  }
}
