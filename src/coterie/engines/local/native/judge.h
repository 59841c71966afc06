/* The rows of many clients under their models, after a step that says of each row of a batch what the
   last three leaves become, and leaves the others as they are: its loss, what is counted, and
   WIDTH outputs.

   Every thread takes the next block of rows, all of one model, until none is left. Outputs are kept
   where there is room for them, which begins after `others_bytes` of the other memory.
*/
void judge(int64_t blocks, int64_t *next, char *const *leaves, const int64_t *apart,
           const int64_t *owner, const int64_t *begin, const int64_t *count, const int64_t *rows,
           const char *x, const char *y, const void *const *constant, const double *number,
           real *losses, real *counted, real *outputs, int64_t width, int64_t others_bytes,
           char *scratch) {
  real *const reals = (real *)scratch;
  char *const others = scratch + REALS * sizeof(real);
  real *const found = (real *)(others + others_bytes);
  memset(found, 0, BATCH_ROWS * (2 + width) * sizeof(real));
  for (;;) {
    const int64_t b = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
    if (b >= blocks)
      return;
    char *leaf[LEAVES];
    for (int k = 0; k < LEAVES - 3; k++)
      leaf[k] = leaves[k] + owner[b] * apart[k];
    for (int k = 0; k < 3; k++)
      leaf[LEAVES - 3 + k] = (char *)(found + k * BATCH_ROWS);
    copy_keys(others, 0, 0);
    for (int64_t j = 0; j < BATCH_ROWS; j++) {
      const int64_t is_real = j < count[b];
      copy_row(reals, others, j, x, y, rows[begin[b] + (is_real ? j : 0)], is_real ? 0 : -1, 0, 0, 0);
    }
    step(leaf, constant, number, reals, others);
    memcpy(losses + begin[b], found, count[b] * sizeof(real));
    memcpy(counted + begin[b], found + BATCH_ROWS, count[b] * sizeof(real));
    if (outputs)
      memcpy(outputs + begin[b] * width, found + 2 * BATCH_ROWS, count[b] * width * sizeof(real));
  }
}
