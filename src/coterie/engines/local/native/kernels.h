/* Products of small matrices, one client at a time: its model stays in the processor's cache.

   The sizes are constants where these functions are used, so that the compiler unrolls all loops.
*/
#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif

/* Keep a vector in a register: gcc would rather read it again for every product. */
#if defined(__x86_64__) && defined(__AVX__)
#define HOLD(v) __asm__("" : "+v"(v))
#else
#define HOLD(v)
#endif

#define ROWS 4 /* of a tile */
#define WIDE 4 /* vectors across a tile */
#define MOST 6 /* rows of any tile */

#define PRODUCTS(T, S)                                                                             \
  typedef T vec_##S __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));            \
  enum { LANES_##S = BYTES / sizeof(T), TILE_##S = WIDE * LANES_##S };                             \
                                                                                                   \
  INLINE T total_##S(vec_##S v) {                                                                  \
    T part[LANES_##S] __attribute__((aligned(BYTES)));                                             \
    *(vec_##S *)part = v;                                                                          \
    for (int n = LANES_##S / 2; n; n /= 2)                                                         \
      for (int l = 0; l < n; l++)                                                                  \
        part[l] += part[l + n];                                                                    \
    return part[0];                                                                                \
  }                                                                                                \
                                                                                                   \
  /* t[r][c] = sum over k of a[r * ar + k * ak] * b[k * bk + c], for `rows` rows and `wide` vectors */\
  INLINE void tile_##S(T *t, const T *a, long ar, long ak, const T *b, long bk, int depth,         \
                       int rows, int wide) {                                                       \
    vec_##S sum[MOST][WIDE];                                                                       \
    for (int r = 0; r < rows; r++)                                                                 \
      for (int w = 0; w < wide; w++)                                                               \
        sum[r][w] = (vec_##S){0};                                                                  \
    for (int k = 0; k < depth; k++) {                                                              \
      vec_##S row[WIDE];                                                                           \
      for (int w = 0; w < wide; w++) {                                                             \
        row[w] = *(const vec_##S *)(b + k * bk + w * LANES_##S);                                   \
        HOLD(row[w]);                                                                              \
      }                                                                                            \
      for (int r = 0; r < rows; r++) {                                                             \
        T factor = a[r * ar + k * ak];                                                             \
        for (int w = 0; w < wide; w++)                                                             \
          sum[r][w] += factor * row[w];                                                            \
      }                                                                                            \
    }                                                                                              \
    for (int r = 0; r < rows; r++)                                                                 \
      for (int w = 0; w < wide; w++)                                                               \
        *(vec_##S *)(t + r * TILE_##S + w * LANES_##S) = sum[r][w];                                \
  }                                                                                                \
                                                                                                   \
  /* p[k][c] = b[k * bk + c * bc], and 0 from `columns` to `wide` */                               \
  INLINE void turn_##S(T *p, const T *b, long bk, long bc, int depth, int columns, int wide) {    \
    for (int k = 0; k < depth; k++) {                                                              \
      for (int c = 0; c < columns; c++)                                                            \
        p[k * wide + c] = b[k * bk + c * bc];                                                      \
      for (int c = columns; c < wide; c++)                                                         \
        p[k * wide + c] = 0;                                                                       \
    }                                                                                              \
  }                                                                                                \
                                                                                                   \
  /* out[r * os + c] = sum over k of a[r * ar + k] * b[c * bc + k] */                              \
  INLINE void dots_##S(T *out, long os, const T *a, long ar, const T *b, long bc, int depth,       \
                       int rows, int columns) {                                                    \
    vec_##S sum[ROWS][ROWS];                                                                       \
    for (int r = 0; r < rows; r++)                                                                 \
      for (int c = 0; c < columns; c++)                                                            \
        sum[r][c] = (vec_##S){0};                                                                  \
    int k = 0;                                                                                     \
    for (; k + LANES_##S <= depth; k += LANES_##S) {                                               \
      vec_##S column[ROWS];                                                                        \
      for (int c = 0; c < columns; c++)                                                            \
        column[c] = *(const vec_##S *)(b + c * bc + k);                                            \
      for (int r = 0; r < rows; r++) {                                                             \
        vec_##S row = *(const vec_##S *)(a + r * ar + k);                                          \
        HOLD(row);                                                                                 \
        for (int c = 0; c < columns; c++)                                                          \
          sum[r][c] += row * column[c];                                                            \
      }                                                                                            \
    }                                                                                              \
    for (int r = 0; r < rows; r++)                                                                 \
      for (int c = 0; c < columns; c++) {                                                          \
        T whole = total_##S(sum[r][c]);                                                            \
        for (int j = k; j < depth; j++)                                                            \
          whole += a[r * ar + j] * b[c * bc + j];                                                  \
        out[r * os + c] = whole;                                                                   \
      }                                                                                            \
  }                                                                                                \
                                                                                                   \
  INLINE void dot_##S(T *out, long os, const T *a, long ar, const T *b, long bc, int rows,         \
                      int depth, int columns) {                                                    \
    int c = 0;                                                                                     \
    for (; c + ROWS <= columns; c += ROWS) {                                                       \
      int r = 0;                                                                                   \
      for (; r + ROWS <= rows; r += ROWS)                                                          \
        dots_##S(out + r * os + c, os, a + r * ar, ar, b + c * bc, bc, depth, ROWS, ROWS);         \
      if (rows % ROWS)                                                                             \
        dots_##S(out + r * os + c, os, a + r * ar, ar, b + c * bc, bc, depth, rows % ROWS, ROWS);  \
    }                                                                                              \
    if (columns % ROWS) {                                                                          \
      int r = 0;                                                                                   \
      for (; r + ROWS <= rows; r += ROWS)                                                          \
        dots_##S(out + r * os + c, os, a + r * ar, ar, b + c * bc, bc, depth, ROWS,                \
                 columns % ROWS);                                                                  \
      if (rows % ROWS)                                                                             \
        dots_##S(out + r * os + c, os, a + r * ar, ar, b + c * bc, bc, depth, rows % ROWS,         \
                 columns % ROWS);                                                                  \
    }                                                                                              \
  }

PRODUCTS(float, f)
PRODUCTS(double, d)
