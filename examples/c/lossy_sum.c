/* SPDX-License-Identifier: Apache-2.0 */
/* A sum over four ranks that loses packets of the ranks' contributions. The ranks are a loop here; in a program each
 * rank is a process, which makes its own network and sums by its own library. */
#include <droptest.h>
#include <stdio.h>
#include <stdlib.h>

enum { RANKS = 4, ELEMENTS = 352000 }; /* 1000 packets of 1408 bytes */

static void check(droptest_status status) {
  if (status == DROPTEST_OK) return;
  fprintf(stderr, "lossy_sum: %s\n", droptest_last_error());
  exit(1);
}

int main(void) {
  const char* json = "{\"network\": {\"loss\": {\"model\": \"bernoulli\", \"loss_rate\": \"1%\"}}, \"seed\": 7}";
  const int32_t members[RANKS] = {0, 1, 2, 3};
  static float sum[ELEMENTS];
  for (int32_t rank = 0; rank < RANKS; ++rank) {
    droptest_network* network = NULL;
    droptest_group* group = NULL;
    droptest_message message;
    float* contribution = malloc(ELEMENTS * sizeof *contribution);
    if (contribution == NULL) return 1;
    for (int i = 0; i < ELEMENTS; ++i) contribution[i] = 1;
    check(droptest_network_create(json, "lossy_sum", rank, RANKS, &network));
    check(droptest_group_open(network, DROPTEST_DP_GRADIENT, 0, members, RANKS, &group));
    check(droptest_group_reduce(group, DROPTEST_SUM, contribution, ELEMENTS, DROPTEST_FLOAT32, NULL, &message, NULL));
    printf("rank %d: %llu of %llu packets lost\n", (int)rank, (unsigned long long)message.lost,
           (unsigned long long)message.packets);
    for (int i = 0; i < ELEMENTS; ++i) sum[i] += contribution[i]; /* the program's own all-reduce */
    free(contribution);
    droptest_network_destroy(network);
  }
  double total = 0;
  for (int i = 0; i < ELEMENTS; ++i) total += sum[i];
  printf("%.4f of the contributions arrived\n", total / ELEMENTS / RANKS);
  return 0;
}
