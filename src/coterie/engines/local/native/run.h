/* All steps of a pass, after the step itself.

   The program defines how many LEAVES the carry has, how many rows a step reads (BATCH_ROWS) and of
   how many bytes their inputs are (X_BYTES), the room that it needs in REALS, and `step`, `copy_row`,
   `copy_keys` and `copy_pace`.
*/
#define LINE 64 /* bytes that memory gives at once */
#define UP_TO(n) (X_BYTES < (n) * LINE ? X_BYTES : (n) * LINE)
#define BEGIN UP_TO(8) /* bytes of a row that are asked for a step ahead */
#define END UP_TO(64) /* and shortly before: of long rows the processor sees what comes next */

/* Where the row at a place begins; padding reads the first. */
INLINE int64_t find_row(const int64_t *rows, int64_t place) {
  const int64_t at = place < 0 ? 0 : place;
  return rows ? rows[at] : at;
}

/* Rows lie anywhere in memory: what is asked for is on its way while something else is done. */
INLINE void ask_for(const char *row, int64_t from, int64_t to) {
  for (int64_t k = from; k < to; k += LINE)
    __builtin_prefetch(row + k);
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
        if (j + 1 < BATCH_ROWS)
          ask_for(x + find_row(mine, place[j + 1]) * X_BYTES, BEGIN, END);
        copy_row(reals, others, j, x, y, find_row(mine, place[j]), place[j], outside,
                 move ? move + j * 3 : 0, border);
      }
      for (int64_t j = BATCH_ROWS; s + 1 < each[i] && j < 2 * BATCH_ROWS; j++)
        ask_for(x + find_row(mine, place[j]) * X_BYTES, 0, BEGIN);
      copy_keys(others, keys[i], s);
      if (pace)
        copy_pace(reals, pace[i * longest + s]);
      step(leaf, constant, number + s * number_apart, reals, others);
    }
  }
}
