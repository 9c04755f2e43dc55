/* Causal attention of one head in C: plan once, execute, read the result. The first query sees the first key
 * alone, so the first row of the output is the first row of v. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tilewise/tilewise.h"

enum { S = 128, D = 64 };

static tw_tensor rows(float* data) {
  tw_tensor t = {.data = data, .dtype = TW_FP32, .ndim = 4, .size = {1, S, 1, D}, .stride = {S * D, D, D, 1}};
  return t;
}

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, tw_last_error());
  return 1;
}

int main(void) {
  static float q[S * D], k[S * D], v[S * D], out[S * D];
  for (int i = 0; i < S * D; ++i) {
    q[i] = (float)(i % 13) / 13;
    k[i] = (float)(i % 7) / 7;
    v[i] = (float)(i % 11) / 11;
  }
  tw_attention a;
  tw_attention_init(&a, sizeof a);
  a.q = rows(q);
  a.k = rows(k);
  a.v = rows(v);
  a.out = rows(out);
  a.options.causal = 1;

  tw_plan* plan;
  if (tw_plan_create(&a, TW_FORWARD, &plan) != TW_OK) return failed("plan");
  const size_t bytes = tw_plan_workspace(plan);
  void* workspace = bytes ? aligned_alloc(256, (bytes + 255) / 256 * 256) : NULL;
  if (tw_plan_execute(plan, &a, workspace, bytes, NULL) != TW_OK) return failed("execute");
  free(workspace);
  tw_plan_destroy(plan);

  const int right = memcmp(out, v, D * sizeof(float)) == 0;
  printf("first row of the output %s the first row of v\n", right ? "is" : "IS NOT");
  return right ? 0 : 1;
}
