/* The rows of many clients under their models, after a step that says of each row of a batch what the
   last two leaves become, and leaves the others as they are.

   Every thread takes the next block of rows, all of one model, until none is left.
*/
void judge(int64_t blocks, int64_t *next, char *const *leaves, const int64_t *apart,
           const int64_t *owner, const int64_t *begin, const int64_t *count, const int64_t *rows,
           const char *x, const char *y, const void *const *constant, const double *number,
           real *losses, real *counted, char *scratch) {
  real *const reals = (real *)scratch;
  char *const others = scratch + REALS * sizeof(real);
  real found[2][BATCH_ROWS] __attribute__((aligned(64)));
  memset(found, 0, sizeof(found));
  for (;;) {
    const int64_t b = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
    if (b >= blocks)
      return;
    char *leaf[LEAVES];
    for (int k = 0; k < LEAVES - 2; k++)
      leaf[k] = leaves[k] + owner[b] * apart[k];
    leaf[LEAVES - 2] = (char *)found[0];
    leaf[LEAVES - 1] = (char *)found[1];
    copy_keys(others, 0, 0);
    for (int64_t j = 0; j < BATCH_ROWS; j++) {
      const int64_t real_row = j < count[b];
      copy_row(reals, others, j, x, y, rows[begin[b] + (real_row ? j : 0)], real_row ? 0 : -1, 0, 0, 0);
    }
    step(leaf, constant, number, reals, others);
    memcpy(losses + begin[b], found[0], count[b] * sizeof(real));
    memcpy(counted + begin[b], found[1], count[b] * sizeof(real));
  }
}
