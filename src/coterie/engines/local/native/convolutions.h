/* Convolutions of small images, as products of small matrices.

   The sizes are constants where these functions are used; images lie in [n][channel][y][x].
*/
#define UNROLL _Pragma("GCC unroll 32")
#define HELD (BYTES == 64 ? 25 : 12) /* vectors that are summed at once */
#define LEAST(a, b) ((a) < (b) ? (a) : (b))

/* an image within zeros, its rows and columns `apart` from each other */
INLINE void frame_image(real *out, const real *x, int channels, int h, int w, int top, int left,
                        int high, int wide, int apart) {
  /* strides may leave out the last rows and columns */
  const int rows = LEAST(h, (high - top + apart - 1) / apart);
  const int columns = LEAST(w, (wide - left + apart - 1) / apart);
  memset(out, 0, ((long)channels * high * wide + LANES) * sizeof(real));
  for (int c = 0; c < channels; c++)
    for (int i = 0; i < rows; i++)
      for (int j = 0; j < columns; j++)
        out[((long)c * high + top + i * apart) * wide + left + j * apart] =
            x[((long)c * h + i) * w + j];
}

/* panel[channel, i, j][p] = image[channel][y * stride + i * step][x * stride + j * step], where
   (y, x) is the place `first + p` of the `across` per row; up to LANES numbers more. Its rows
   are `apart`. */
INLINE void fill_panel(real *panel, const real *image, int channels, int high, int wide, int kh,
                       int kw, int stride, int step, int across, int first, int number, int apart) {
  int from[number], to[number], runs = 0;
  const int most = stride == 1 ? LANES : 1;
  for (int p = 0; p < number;) {
    const int y = (first + p) / across, x = (first + p) % across;
    from[runs] = (y * wide + x) * stride;
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

/* out[o][first + p] = sum over k of w[o * depth + k] * panel[k][p] + bias[o] */
INLINE void multiply_columns(real *out, const real *panel, const real *w, const real *bias,
                             int outs, int depth, long apart, int number, int rows, int positive) {
  const int wide = (number + LANES - 1) / LANES;
  for (int o = 0; o < outs; o += rows) {
    real t[MOST * TILE] __attribute__((aligned(64)));
    if (o + rows <= outs)
      multiply_tile(t, w + (long)o * depth, depth, 1, panel, TILE, depth, rows, wide);
    else
      multiply_tile(t, w + (long)o * depth, depth, 1, panel, TILE, depth, outs % rows, wide);
    for (int r = 0; r < LEAST(rows, outs - o); r++) {
      const real more = bias ? bias[o + r] : 0;
      for (int p = 0; p < number; p++) {
        const real one = t[r * TILE + p] + more;
        out[(o + r) * apart + p] = positive && one <= 0 ? 0 : one;
      }
    }
  }
}

/* out[n][o] = sum over channels of x[n][channel] with w[o][channel], plus bias[o] */
INLINE void convolve(real *out, const real *x, const real *w, const real *bias, real *room,
                     int images, int channels, int h, int wx, int outs, int kh, int kw,
                     int stride, int step, int top, int left, int apart, int ho, int wo,
                     int positive, int groups) {
  const int high = (ho - 1) * stride + (kh - 1) * step + 1;
  const int wide = (wo - 1) * stride + (kw - 1) * step + 1;
  const int depth = channels * kh * kw, places = ho * wo;
  const int rows = outs % 4 == 0 || BYTES < 64 ? 4 : outs % 6 == 0 ? 6 : outs % 5 == 0 ? 5 : 4;
  real *image = room + (long)(depth + 1) * TILE;
  for (int n = 0; n < images; n++) {
    real *const mine = out + (long)n * groups * outs * places;
    frame_image(image, x + (long)n * groups * channels * h * wx, channels, h, wx, top, left, high,
                wide, apart);
    int first = 0;
    for (; first + TILE <= places; first += TILE) {
      fill_panel(room, image, channels, high, wide, kh, kw, stride, step, wo, first, TILE, TILE);
      multiply_columns(mine + first, room, w, bias, outs, depth, places, TILE, rows, positive);
    }
    if (places % TILE) {
      fill_panel(room, image, channels, high, wide, kh, kw, stride, step, wo, first, places % TILE,
                 TILE);
      multiply_columns(mine + first, room, w, bias, outs, depth, places, places % TILE, rows,
                       positive);
    }
  }
}

/* w[channel][o] turned by half, for the gradients of the input */
INLINE void turn_kernels(real *out, const real *w, int outs, int channels, int kh, int kw) {
  for (int c = 0; c < channels; c++)
    for (int o = 0; o < outs; o++)
      for (int k = 0; k < kh * kw; k++)
        out[((long)c * outs + o) * kh * kw + k] =
            w[((long)o * channels + c) * kh * kw + kh * kw - 1 - k];
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
                width, 1);
    fill_panel(panel, image, channels, high, width, kh, kw, stride, step, wo, 0, places, padded);
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
                width, 1);
    for (int first = 0; first < places; first += LANES)
      for (int o = 0; o < outs; o++)
        for (int p = first; p < LEAST(first + LANES, places); p++)
          by_place[(long)p * padded + o] = gradients[((long)n * groups * outs + o) * places + p];
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
