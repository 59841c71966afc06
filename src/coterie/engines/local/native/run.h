/* All steps of a pass, after the step itself.

   The program defines how many LEAVES the carry has, how many rows a step reads (BATCH_ROWS) and of
   how many bytes their inputs are (X_BYTES), the room that it needs in REALS, and `step`, `copy_row`,
   `copy_keys` and `copy_pace`.
*/
#define LINE 64 /* bytes that memory gives at once */
#define AHEAD (8 * LINE) /* bytes of a row that are asked for; the processor sees what comes next */

/* Rows lie anywhere in memory: those of a next step are on their way while this one computes. */
INLINE void ask_for_row(const char *x, int64_t row) {
  for (int64_t k = 0; k < X_BYTES && k < AHEAD; k += LINE)
    __builtin_prefetch(x + row * X_BYTES + k);
}

/* Every thread takes the next client until none is left. */
void run(int64_t clients, int64_t *next, char *const *leaves, const int64_t *apart,
         const int64_t *each, int64_t longest, const int64_t *places, const int64_t *first,
         int64_t first_apart, const int64_t *rows, const int64_t *keys, int64_t outside,
         const char *x, const char *y, const double *pace, const int32_t *moves,
         const char *border, const void *const *constant, const double *number,
         int64_t number_apart, char *scratch) {
  real *const reals = (real *)scratch;
  char *const others = scratch + REALS * sizeof(real);
  for (;;) {
    const int64_t i = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
    if (i >= clients)
      return;
    char *leaf[LEAVES + 1];
    for (int k = 0; k < LEAVES; k++)
      leaf[k] = leaves[k] + i * apart[k];
    const int64_t *const mine = rows ? rows + first[i * first_apart] : 0;
    for (int64_t s = 0; s < each[i]; s++) {
      const int64_t *place = places + (i * longest + s) * BATCH_ROWS;
      const int32_t *move = moves ? moves + (i * longest + s) * BATCH_ROWS * 3 : 0;
      for (int64_t j = 0; j < BATCH_ROWS; j++) {
        const int64_t at = place[j] < 0 ? 0 : place[j];
        const int64_t row = mine ? mine[at] : at;
        copy_row(reals, others, j, x, y, row, place[j], outside, move ? move + j * 3 : 0, border);
      }
      for (int64_t j = BATCH_ROWS; s + 1 < each[i] && j < 2 * BATCH_ROWS; j++)
        if (place[j] >= 0)
          ask_for_row(x, mine ? mine[place[j]] : place[j]);
      copy_keys(others, keys[i], s);
      if (pace)
        copy_pace(reals, pace[i * longest + s]);
      step(leaf, constant, number + s * number_apart, reals, others);
    }
  }
}
