/* The C interface from C11, compiled with -pedantic -Werror: the header stands alone, a problem runs, errors
 * have words. */
#include "tilewise/tilewise.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static tw_tensor tensor4(float* data, int64_t b, int64_t s, int64_t h, int64_t d) {
  tw_tensor t;
  memset(&t, 0, sizeof t);
  t.data = data;
  t.dtype = TW_FP32;
  t.ndim = 4;
  t.size[0] = b, t.size[1] = s, t.size[2] = h, t.size[3] = d;
  t.stride[3] = 1, t.stride[2] = d, t.stride[1] = h * d, t.stride[0] = s * h * d;
  return t;
}

int main(void) {
  float q[2] = {0, 0}, k[4] = {1, 2, 3, 4}, v[2] = {1, 3}, out[1] = {-1};
  unsigned char workspace[1 << 20];
  unsigned char* aligned = workspace + (256 - (uintptr_t)workspace % 256) % 256;
  tw_attention a;
  tw_status status;
  if (tw_attention_init(&a, sizeof a) != TW_OK) return 1;
  a.q = tensor4(q, 1, 1, 1, 2);
  a.k = tensor4(k, 1, 2, 1, 2);
  a.v = tensor4(v, 1, 2, 1, 1);
  a.out = tensor4(out, 1, 1, 1, 1);
  status = tw_attention_run(&a, TW_FORWARD, aligned, sizeof workspace - 256, NULL);
  if (status != TW_OK || fabsf(out[0] - 2) > 1e-6f) {
    printf("%s: %s; out is %g, should be the mean, 2\n", tw_status_name(status), tw_last_error(),
           (double)out[0]);
    return 1;
  }
  a.v = tensor4(v, 1, 1, 1, 1);
  if (tw_attention_run(&a, TW_FORWARD, aligned, sizeof workspace - 256, NULL) != TW_INVALID_ARGUMENT)
    return 1;
  return strlen(tw_last_error()) > 0 ? 0 : 1;
}
