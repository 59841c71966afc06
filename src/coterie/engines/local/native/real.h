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

/* Keep a vector in a register: gcc would rather read it again for every product. */
#if defined(__x86_64__) && defined(__AVX__)
#define HOLD(v) __asm__("" : "+v"(v))
#else
#define HOLD(v)
#endif
