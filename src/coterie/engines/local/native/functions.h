/* exp and log without a branch, so that a loop over them is one over vectors.

   exp: x = k ln 2 + r with |r| <= ln 2 / 2, the series of exp(r), and 2^k in two factors, since one
   alone may be too large or too small for a number. log: x = 2^k m with m near 1, and the series of
   log((1 + s) / (1 - s)) with s = (m - 1) / (m + 1). Both are right to two units in the last place;
   NaN stays NaN, and what is out of bounds becomes 0, infinity or NaN as in C's library.
*/
#define AND(c) sum = sum * r + (__typeof__(r))(c);
#define SEVEN                                                                                      \
  AND(1.0 / 5040) AND(1.0 / 720) AND(1.0 / 120) AND(1.0 / 24) AND(1.0 / 6) AND(1.0 / 2)            \
  AND(1) AND(1)
#define THIRTEEN                                                                                   \
  AND(1.0 / 6227020800) AND(1.0 / 479001600) AND(1.0 / 39916800) AND(1.0 / 3628800)                \
  AND(1.0 / 362880) AND(1.0 / 40320) SEVEN
#define NINE AND(1.0 / 9) AND(1.0 / 7) AND(1.0 / 5) AND(1.0 / 3)
#define NINETEEN AND(1.0 / 19) AND(1.0 / 17) AND(1.0 / 15) AND(1.0 / 13) AND(1.0 / 11) NINE

#define FUNCTIONS(T, U, S, DIGITS, BIAS, LOW, HIGH, LEAST, HALF, LN2, REST, POWERS, ODD)           \
  INLINE U bits_of##S(T x) {                                                                       \
    U u;                                                                                           \
    memcpy(&u, &x, sizeof u);                                                                      \
    return u;                                                                                      \
  }                                                                                                \
  INLINE T number_of##S(U u) {                                                                     \
    T x;                                                                                           \
    memcpy(&x, &u, sizeof x);                                                                      \
    return x;                                                                                      \
  }                                                                                                \
                                                                                                   \
  INLINE T vexp##S(T x) {                                                                          \
    const T whole = (T)3 * ((U)1 << (DIGITS - 1)); /* numbers this large have no fraction */       \
    const T within = x < (T)LOW ? (T)LOW : x > (T)HIGH ? (T)HIGH : x;                              \
    const T moved = within * (T)1.4426950408889634 + whole, k = moved - whole;                     \
    const T r = (within - k * (T)LN2) - k * (T)REST;                                               \
    T sum = 0;                                                                                     \
    POWERS                                                                                         \
    const U twice = bits_of##S(moved) - bits_of##S(whole) + 2 * (U)BIAS, half = twice >> 1;        \
    return sum * number_of##S(half << DIGITS) * number_of##S((twice - half) << DIGITS);            \
  }                                                                                                \
                                                                                                   \
  INLINE T vlog##S(T x) {                                                                          \
    const T whole = (T)3 * ((U)1 << (DIGITS - 1)), much = (T)((U)1 << DIGITS);                     \
    const T normal = x < (T)LEAST ? x * much : x, less = x < (T)LEAST ? (T)DIGITS : 0;             \
    const U u = bits_of##S(normal);                                                                \
    const U k = ((u + ((U)BIAS << DIGITS) - (U)HALF) >> DIGITS) - (U)BIAS;                         \
    const T m = number_of##S(u - (k << DIGITS));                                                   \
    const T up = number_of##S(bits_of##S(whole) + k) - whole - less;                               \
    const T s = (m - 1) / (m + 1), r = s * s;                                                      \
    T sum = 0;                                                                                     \
    ODD                                                                                            \
    const T found = up * (T)LN2 + (2 * s + (2 * s * (r * sum) + up * (T)REST));                    \
    const T any = x > 0 ? found : x == 0 ? -(T)INFINITY : (T)NAN;                                  \
    return x < (T)INFINITY ? any : x;                                                              \
  }

FUNCTIONS(float, uint32_t, f, 23, 127, -104, 89, 0x1p-126, 0x3f3504f3, 0x1.62e4p-1,
          0x1.7f7d1cf79abcap-20, SEVEN, NINE)
FUNCTIONS(double, uint64_t, , 52, 1023, -746, 710, 0x1p-1022, 0x3fe6a09e667f3bcd, 0x1.62e42fefa2p-1,
          0x1.9ef35793c7673p-41, THIRTEEN, NINETEEN)
