/* Rows on their way into a batch. */

/* An image of c x h x w, cropped `move[0]` pixels down and `move[1]` to the right of where it is,
   then flipped left to right if `move[2]`; `border` is read where the crop has no pixel. */
static inline void move_image(real *out, const real *image, const real *border, int c, int h,
                              int w, const int32_t *move) {
  for (int k = 0; k < c; k++)
    for (int i = 0; i < h; i++) {
      const int row = i + move[0];
      const real *const from = image + ((int64_t)k * h + row) * w;
      const int64_t at = ((int64_t)k * h + i) * w;
      for (int j = 0; j < w; j++) {
        const int column = (move[2] ? w - 1 - j : j) + move[1];
        const int inside = row >= 0 && row < h && column >= 0 && column < w;
        out[at + j] = inside ? from[column] : border[at + j];
      }
    }
}
