/* The one type that a step computes in, and vectors of it.

   DOUBLE is defined before: 0 for steps as they run, 1 for the same step in double precision.
*/
#include <stdint.h>
#include <string.h>
#include <tgmath.h>

#if DOUBLE
typedef double real;
#else
typedef float real;
#endif

#define INLINE static inline __attribute__((always_inline))
#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif
#define LANES (BYTES / (DOUBLE ? 8 : 4)) /* numbers of a vector */

typedef real vec __attribute__((vector_size(BYTES), aligned(sizeof(real)), may_alias));

/* Every second number of two vectors; the first and the second halves of both, by turns; the numbers
   from one on. */
#if LANES == 16
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#define LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#define FROM(n) (n), (n) + 1, (n) + 2, (n) + 3, (n) + 4, (n) + 5, (n) + 6, (n) + 7, \
                (n) + 8, (n) + 9, (n) + 10, (n) + 11, (n) + 12, (n) + 13, (n) + 14, (n) + 15
#elif LANES == 8
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define ODD 1, 3, 5, 7, 9, 11, 13, 15
#define LOW 0, 8, 1, 9, 2, 10, 3, 11
#define HIGH 4, 12, 5, 13, 6, 14, 7, 15
#define FROM(n) (n), (n) + 1, (n) + 2, (n) + 3, (n) + 4, (n) + 5, (n) + 6, (n) + 7
#elif LANES == 4
#define EVEN 0, 2, 4, 6
#define ODD 1, 3, 5, 7
#define LOW 0, 4, 1, 5
#define HIGH 2, 6, 3, 7
#define FROM(n) (n), (n) + 1, (n) + 2, (n) + 3
#else
#define EVEN 0, 2
#define ODD 1, 3
#define LOW 0, 2
#define HIGH 1, 3
#define FROM(n) (n), (n) + 1
#endif

/* Keep a vector in a register: gcc would rather read it again for every product. */
#if defined(__x86_64__) && defined(__AVX__)
#define HOLD(v) __asm__("" : "+v"(v))
#else
#define HOLD(v)
#endif
