/* Products of small matrices, one client at a time: its model stays in the processor's cache.

   The sizes are constants where these functions are used, so that the compiler unrolls all loops.
*/
#define ROWS 4 /* of a tile */
#define WIDE 4 /* vectors across a tile */
#define MOST 6 /* rows of any tile */
#define TILE (WIDE * LANES)

/* The sum of the numbers of a vector: always those half a vector apart, then a quarter, and so on. */
INLINE real add_lanes(vec v) {
#if LANES >= 16
  v += __builtin_shufflevector(v, v, FROM(8));
#endif
#if LANES >= 8
  v += __builtin_shufflevector(v, v, FROM(4));
#endif
#if LANES >= 4
  v += __builtin_shufflevector(v, v, FROM(2));
#endif
  v += __builtin_shufflevector(v, v, FROM(1));
  return v[0];
}

/* t[r][c] = sum over k of a[r * ar + k * ak] * b[k * bk + c], for `rows` rows and `wide` vectors */
INLINE void multiply_tile(real *t, const real *a, long ar, long ak, const real *b, long bk,
                          int depth, int rows, int wide) {
  vec sum[MOST][WIDE];
  for (int r = 0; r < rows; r++)
    for (int w = 0; w < wide; w++)
      sum[r][w] = (vec){0};
  for (int k = 0; k < depth; k++) {
    vec row[WIDE];
    for (int w = 0; w < wide; w++) {
      row[w] = *(const vec *)(b + k * bk + w * LANES);
      HOLD(row[w]);
    }
    for (int r = 0; r < rows; r++) {
      real factor = a[r * ar + k * ak];
      for (int w = 0; w < wide; w++)
        sum[r][w] += factor * row[w];
    }
  }
  for (int r = 0; r < rows; r++)
    for (int w = 0; w < wide; w++)
      *(vec *)(t + r * TILE + w * LANES) = sum[r][w];
}

/* p[k][c] = b[k * bk + c * bc], and 0 from `columns` to `wide` */
INLINE void turn_factor(real *p, const real *b, long bk, long bc, int depth, int columns,
                        int wide) {
  for (int k = 0; k < depth; k++) {
    for (int c = 0; c < columns; c++)
      p[k * wide + c] = b[k * bk + c * bc];
    for (int c = columns; c < wide; c++)
      p[k * wide + c] = 0;
  }
}

/* out[r * os + c] = sum over k of a[r * ar + k] * b[c * bc + k] */
INLINE void multiply_block(real *out, long os, const real *a, long ar, const real *b, long bc,
                           int depth, int rows, int columns) {
  vec sum[ROWS][ROWS];
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < columns; c++)
      sum[r][c] = (vec){0};
  int k = 0;
  for (; k + LANES <= depth; k += LANES) {
    vec column[ROWS];
    for (int c = 0; c < columns; c++) {
      column[c] = *(const vec *)(b + c * bc + k);
      HOLD(column[c]);
    }
    for (int r = 0; r < rows; r++) {
      vec row = *(const vec *)(a + r * ar + k);
      HOLD(row);
      for (int c = 0; c < columns; c++)
        sum[r][c] += row * column[c];
    }
  }
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < columns; c++) {
      real whole = add_lanes(sum[r][c]);
      for (int j = k; j < depth; j++)
        whole += a[r * ar + j] * b[c * bc + j];
      out[r * os + c] = whole;
    }
}

INLINE void multiply_rows(real *out, long os, const real *a, long ar, const real *b, long bc,
                          int rows, int depth, int columns) {
  int c = 0;
  for (; c + ROWS <= columns; c += ROWS) {
    int r = 0;
    for (; r + ROWS <= rows; r += ROWS)
      multiply_block(out + r * os + c, os, a + r * ar, ar, b + c * bc, bc, depth, ROWS, ROWS);
    if (rows % ROWS)
      multiply_block(out + r * os + c, os, a + r * ar, ar, b + c * bc, bc, depth, rows % ROWS,
                     ROWS);
  }
  if (columns % ROWS) {
    int r = 0;
    for (; r + ROWS <= rows; r += ROWS)
      multiply_block(out + r * os + c, os, a + r * ar, ar, b + c * bc, bc, depth, ROWS,
                     columns % ROWS);
    if (rows % ROWS)
      multiply_block(out + r * os + c, os, a + r * ar, ar, b + c * bc, bc, depth, rows % ROWS,
                     columns % ROWS);
  }
}
