/* exp and log without a branch, so that a loop over them is one over vectors.

   exp: x = k ln 2 + r with |r| <= ln 2 / 2, the series of exp(r), and 2^k in two factors, since one
   alone may be too large or too small for a number. log: x = 2^k m with m near 1, and the series of
   log((1 + s) / (1 - s)) with s = (m - 1) / (m + 1). Both are right to two units in the last place;
   NaN stays NaN, and what is out of bounds becomes 0, infinity or NaN as in C's library.
*/
#define AND(c) sum = sum * r + (real)(c);
#define SEVEN                                                                                      \
  AND(1.0 / 5040) AND(1.0 / 720) AND(1.0 / 120) AND(1.0 / 24) AND(1.0 / 6) AND(1.0 / 2)            \
  AND(1) AND(1)
#define THIRTEEN                                                                                   \
  AND(1.0 / 6227020800) AND(1.0 / 479001600) AND(1.0 / 39916800) AND(1.0 / 3628800)                \
  AND(1.0 / 362880) AND(1.0 / 40320) SEVEN
#define NINE AND(1.0 / 9) AND(1.0 / 7) AND(1.0 / 5) AND(1.0 / 3)
#define NINETEEN AND(1.0 / 19) AND(1.0 / 17) AND(1.0 / 15) AND(1.0 / 13) AND(1.0 / 11) NINE

#if DOUBLE
typedef uint64_t bits;
enum { DIGITS = 52, BIAS = 1023, LOWEST = -746, HIGHEST = 710 };
#define SMALLEST 0x1p-1022
#define HALF_BITS 0x3fe6a09e667f3bcd
#define LN2 0x1.62e42fefa2p-1
#define LN2_REST 0x1.9ef35793c7673p-41
#define POWERS THIRTEEN
#define ODD_POWERS NINETEEN
#else
typedef uint32_t bits;
enum { DIGITS = 23, BIAS = 127, LOWEST = -104, HIGHEST = 89 };
#define SMALLEST 0x1p-126
#define HALF_BITS 0x3f3504f3
#define LN2 0x1.62e4p-1
#define LN2_REST 0x1.7f7d1cf79abcap-20
#define POWERS SEVEN
#define ODD_POWERS NINE
#endif

INLINE bits bits_of(real x) {
  bits u;
  memcpy(&u, &x, sizeof u);
  return u;
}

INLINE real number_of(bits u) {
  real x;
  memcpy(&x, &u, sizeof x);
  return x;
}

INLINE real vexp(real x) {
  const real whole = (real)3 * ((bits)1 << (DIGITS - 1)); /* numbers this large have no fraction */
  const real within = x < (real)LOWEST ? (real)LOWEST : x > (real)HIGHEST ? (real)HIGHEST : x;
  const real moved = within * (real)1.4426950408889634 + whole, k = moved - whole;
  const real r = (within - k * (real)LN2) - k * (real)LN2_REST;
  real sum = 0;
  POWERS
  const bits twice = bits_of(moved) - bits_of(whole) + 2 * (bits)BIAS, half = twice >> 1;
  return sum * number_of(half << DIGITS) * number_of((twice - half) << DIGITS);
}

INLINE real vlog(real x) {
  const real whole = (real)3 * ((bits)1 << (DIGITS - 1)), much = (real)((bits)1 << DIGITS);
  const real normal = x < (real)SMALLEST ? x * much : x;
  const real less = x < (real)SMALLEST ? (real)DIGITS : 0;
  const bits u = bits_of(normal);
  const bits k = ((u + ((bits)BIAS << DIGITS) - (bits)HALF_BITS) >> DIGITS) - (bits)BIAS;
  const real m = number_of(u - (k << DIGITS));
  const real up = number_of(bits_of(whole) + k) - whole - less;
  const real s = (m - 1) / (m + 1), r = s * s;
  real sum = 0;
  ODD_POWERS
  const real found = up * (real)LN2 + (2 * s + (2 * s * (r * sum) + up * (real)LN2_REST));
  const real any = x > 0 ? found : x == 0 ? -(real)INFINITY : (real)NAN;
  return x < (real)INFINITY ? any : x;
}

/* erf: near 0 its series, elsewhere 1 - exp of a polynomial of 1 / (1 + |x| / 2) (Numerical
   Recipes), right to 1.2e-7; C's own in double precision */
INLINE real verf(real x) {
#if DOUBLE
  return erf(x);
#else
  const real z = x < 0 ? -x : x, q = x * x, t = 1 / (1 + (real)0.5 * z);
  const real near = x * ((real)1.1283791670955126 +
                         q * ((real)-0.37612638903183754 +
                              q * ((real)0.11283791670955126 +
                                   q * ((real)-0.026866170645131252 +
                                        q * ((real)0.005223977625442187 +
                                             q * (real)-0.0008548327023450853)))));
  const real power =
      -q - (real)1.26551223 +
      t * ((real)1.00002368 +
           t * ((real)0.37409196 +
                t * ((real)0.09678418 +
                     t * ((real)-0.18628806 +
                          t * ((real)0.27886807 +
                               t * ((real)-1.13520398 +
                                    t * ((real)1.48851587 +
                                         t * ((real)-0.82215223 + t * (real)0.17087277))))))));
  const real far = 1 - t * vexp(power);
  return z < (real)0.5 ? near : x < 0 ? -far : far;
#endif
}
