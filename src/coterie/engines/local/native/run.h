/* All steps of a pass, after the step itself.

   The program defines how many LEAVES the carry has, how many rows a step reads (BATCH_ROWS), the
   room that it needs in REALS, and `step`, `copy_row`, `copy_keys` and `copy_pace`.
*/

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
    for (int64_t s = 0; s < each[i]; s++) {
      const int64_t *place = places + (i * longest + s) * BATCH_ROWS;
      const int32_t *move = moves ? moves + (i * longest + s) * BATCH_ROWS * 3 : 0;
      for (int64_t j = 0; j < BATCH_ROWS; j++) {
        const int64_t at = place[j] < 0 ? 0 : place[j];
        const int64_t row = rows ? rows[first[i * first_apart] + at] : at;
        copy_row(reals, others, j, x, y, row, place[j], outside, move ? move + j * 3 : 0, border);
      }
      copy_keys(others, keys[i], s);
      if (pace)
        copy_pace(reals, pace[i * longest + s]);
      step(leaf, constant, number + s * number_apart, reals, others);
    }
  }
}
