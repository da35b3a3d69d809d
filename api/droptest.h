/* SPDX-License-Identifier: Apache-2.0 */
/* The C interface of droptest: which packets of a link are lost, the fill of lost packets in messages of other
 * programs, and the counts. docs/c_interface.md has an example; docs/fates.md defines the fates.
 *
 * Every function that can fail returns a droptest_status, and leaves its results untouched unless that is DROPTEST_OK.
 * droptest_last_error() then has the message. No exception leaves the library, and it never prints, exits or aborts.
 *
 * Threads: a network and its flows may be used from any threads. The calls of one flow are done one after the other.
 * Processes: after fork() every call in the child that needs a network is refused with DROPTEST_FORKED; the child
 * creates networks of its own. */
#ifndef DROPTEST_H
#define DROPTEST_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DROPTEST_API __attribute__((visibility("default")))

typedef enum {
  DROPTEST_OK = 0,
  DROPTEST_CONFIG_ERROR = 1,   /* the JSON, a file or an environment variable: the message names the place */
  DROPTEST_ARGUMENT_ERROR = 2, /* an argument of the call: the message names it */
  DROPTEST_DEVICE_ERROR = 3,   /* CUDA failed, or the library was built without CUDA */
  DROPTEST_FORKED = 4,         /* the network was made before fork(), in the parent */
  DROPTEST_MISMATCH = 5,       /* the digest is not that of these fates, or another rank has another network */
  DROPTEST_INTERNAL_ERROR = 6  /* a bug of droptest */
} droptest_status;

/* The message of the calling thread's last failed call; "" before any. Valid until the thread's next failed call. */
DROPTEST_API const char* droptest_last_error(void);

/* The version of the library: "0.1.0". */
DROPTEST_API const char* droptest_version(void);

/* The traffic classes of docs/specs.md. DROPTEST_CONTROL is reliable: its messages are exempt from loss. */
typedef enum {
  DROPTEST_CONTROL = 0,
  DROPTEST_TP_FORWARD = 1,
  DROPTEST_TP_BACKWARD = 2,
  DROPTEST_DP_GRADIENT = 3,
  DROPTEST_PARAMETER_GATHER = 4,
  DROPTEST_PP_ACTIVATION = 5,
  DROPTEST_PP_GRADIENT = 6,
  DROPTEST_SEQUENCE_FORWARD = 7,
  DROPTEST_EMBEDDING_GRADIENT = 8,
  DROPTEST_SEQUENCE_BACKWARD = 9,
  DROPTEST_OUTER = 10,
  DROPTEST_TP_RECOMPUTATION = 11
} droptest_class;

/* The name of a class, "dp_gradient"; NULL for a number that is no class. */
DROPTEST_API const char* droptest_class_name(droptest_class traffic_class);
DROPTEST_API droptest_status droptest_class_from_name(const char* name, droptest_class* traffic_class);

typedef enum {
  DROPTEST_FLOAT32 = 0,
  DROPTEST_FLOAT64 = 1,
  DROPTEST_UINT64 = 2,
  DROPTEST_BFLOAT16 = 3,
  DROPTEST_FLOAT16 = 4,
  DROPTEST_INT32 = 5,
  DROPTEST_INT64 = 6,
  DROPTEST_UINT8 = 7 /* and every other type with elements of one byte */
} droptest_type;

/* The half of a collective (docs/paths.md). */
typedef enum {
  DROPTEST_REDUCE = 0, /* towards the sum: contributions to all-reduce and reduce-scatter */
  DROPTEST_GATHER = 1  /* away from the rank that has the value: all-gather, broadcast, all-to-all, send */
} droptest_half;

/* ---- Networks ---------------------------------------------------------------------------------------------------- */

/* The network of one rank: its loss processes, its flows and its counts. */
typedef struct droptest_network droptest_network;

/* Makes a network from the text {"network": SECTION, "seed": INTEGER, "rules": [RULE, ...], "statistics": FOLDER}.
 * The section and the seed are those of a spec (docs/specs.md), with the same defaults, checks and messages, but:
 * - the default of "path" is "contribution";
 * - members that need a communicator of droptest's own (other paths, a time section, compression, ...) are refused by
 *   name;
 * - a section without any "loss" is refused: a network that loses nothing has {"model": "none"}.
 * docs/c_interface.md has the rules. `where` names the text in messages. `rank` and `world_size` are those of the whole
 * program: 0 <= rank < world_size <= 65534. */
DROPTEST_API droptest_status droptest_network_create(const char* json, const char* where, int32_t rank,
                                                     int32_t world_size, droptest_network** network);

/* Makes a network from the text of a file; NULL: of the file that the environment variable DROPTEST_NETWORK names. */
DROPTEST_API droptest_status droptest_network_read(const char* file, int32_t rank, int32_t world_size,
                                                   droptest_network** network);

/* Frees the network and its flows. No call that uses them is under way. NULL is allowed. */
DROPTEST_API void droptest_network_destroy(droptest_network* network);

/* Sets the training step of the fates from now on, for losses that change over steps. The first step is 0. */
DROPTEST_API droptest_status droptest_network_set_step(droptest_network* network, uint64_t step);

/* This rank's state: the packets that its links have used up, and its counts. A program puts it into its checkpoints:
 * a network that was made from the same text for the same rank, and then gets the state, goes on with the fates that
 * follow. Puts at most `size` bytes into `data`, and the bytes of the state into `needed`; writes nothing if it does
 * not fit; `data` may be NULL with a size of 0. Refused while results of a sum wait for
 * droptest_group_finish_reduce(). */
DROPTEST_API droptest_status droptest_network_save_state(const droptest_network* network, void* data, size_t size,
                                                         size_t* needed);

/* Gives the network a saved state, in place of its own. DROPTEST_CONFIG_ERROR for bytes that are damaged, or the state
 * of another network, seed, rank or number of ranks. Programs that draw fates themselves (droptest_flow_law()) save the
 * packets that they have drawn, too. */
DROPTEST_API droptest_status droptest_network_load_state(droptest_network* network, const void* data, size_t size);

/* Ranks with different networks lose different packets, and their sums are wrong. So the members of a new process group
 * compare their networks: by the digest, a number that is equal on ranks with equal networks, and, if it differs,
 * by the identity, a JSON text with the library's version, the seed, the rules and the network of each class. Neither
 * contains the folder of the counts. */
DROPTEST_API droptest_status droptest_network_digest(const droptest_network* network, uint64_t* digest);

/* Puts at most `size` bytes of the identity with a final 0 into `text`, and the bytes of all of it with its final 0
 * into `needed`. Writes nothing if it does not fit; `text` may be NULL with a size of 0. */
DROPTEST_API droptest_status droptest_network_identity(const droptest_network* network, char* text, size_t size,
                                                       size_t* needed);

/* Compares the network with that of world rank `peer`, which has this identity. DROPTEST_MISMATCH if they differ: the
 * message has both ranks and the first member that differs, with both values. */
DROPTEST_API droptest_status droptest_network_check_peer(const droptest_network* network, int32_t peer,
                                                         const char* identity);

/* Whether packets of a class can be lost on any link: `can_lose` is 1 or 0. For callers that cannot lose packets of
 * some calls, and refuse these calls under loss. */
DROPTEST_API droptest_status droptest_network_can_lose(const droptest_network* network, droptest_class traffic_class,
                                                       int32_t* can_lose);

/* A collective call of the program, as one rank makes it. */
typedef struct {
  const char* operation; /* "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter",
                            "all_to_all", "send", "recv", "barrier" */
  const char* group;     /* name of the process group, which rules may ask for; NULL: it has none */
  int32_t group_ranks;   /* ranks of the group */
  droptest_type type;
  uint64_t elements; /* elements of this rank's message: of its input, or of recv's output */
} droptest_call;

/* The traffic class of a call by the rules of the network. Exempt calls (DROPTEST_CONTROL) are counted by their
 * reason: "integer", "small" (below one packet), "operation" (barriers, broadcasts), "rule", "one_rank" (groups of one
 * rank), "no_loss_layer" (of droptest_count_exempt()). A message from one rank to another is counted once, by its
 * sender: "recv" counts nothing. */
DROPTEST_API droptest_status droptest_classify(droptest_network* network, const droptest_call* call,
                                               droptest_class* traffic_class);

/* Counts a call in which the caller cannot lose packets, under the reason "no_loss_layer". */
DROPTEST_API droptest_status droptest_count_exempt(droptest_network* network, const droptest_call* call);

/* ---- Flows ------------------------------------------------------------------------------------------------------- */

#define DROPTEST_EVERY_DESTINATION (-1)

/* One direction of a link. Contributions to sums on the path `contribution` travel to every destination. */
typedef struct {
  droptest_class traffic_class;
  droptest_half half;
  int32_t source;      /* world rank */
  int32_t destination; /* world rank, or DROPTEST_EVERY_DESTINATION */
  /* Number of the process group, equal on all its ranks, and different for groups with a common rank; 0 for the group
   * of all ranks. It matters only for links to every destination. At most 65535, 255 with burst_scope "message". */
  uint32_t group;
} droptest_link;

/* A link as a sequence of packets: packet indices of later messages go on after those of earlier ones. */
typedef struct droptest_flow droptest_flow;

/* The flow of a link in this network; the same one each time. The network owns it. `counted` is 1 on the one rank that
 * counts the link (its source if it goes to every destination, else its receiver), and 0 on others. Classes
 * without a loss in the network have flows, too. */
DROPTEST_API droptest_status droptest_flow_open(droptest_network* network, const droptest_link* link, int32_t counted,
                                                droptest_flow** flow);

/* One message of a flow. */
typedef struct {
  uint64_t message;      /* messages of the flow before it */
  uint64_t first_packet; /* index of its first packet (docs/paths.md); unspecified for a message without packets */
  uint64_t packets;      /* data packets */
  uint64_t lost;         /* data packets that are missing after the recovery of the network, if it has one */
} droptest_message;

/* Packets of a message of that many elements. */
DROPTEST_API droptest_status droptest_flow_packets(const droptest_flow* flow, uint64_t elements, droptest_type type,
                                                   uint64_t* packets);

/* Uses up the packets of the flow's next message, and writes their fates: bit i % 64 of mask[i / 64] is set if
 * packet i is lost; bits after the last packet are clear. `mask_words` is at least ceil(packets / 64). `message` may be
 * NULL. */
DROPTEST_API droptest_status droptest_flow_next(droptest_flow* flow, uint64_t elements, droptest_type type,
                                                uint64_t* mask, size_t mask_words, droptest_message* message);

/* The fates of packets first_packet to first_packet + packets - 1, which uses up nothing: a pure function of the
 * network, the link and the indices, without recovery. Indices count the packets of the flow from 0, or are those of
 * droptest_message.first_packet, which have the number of the flow's group in their upper bits (docs/paths.md); indices
 * of other groups are refused. For processes that look at more than the index (patterns, clocks) the packets are those
 * of one message that begins at index 0. */
DROPTEST_API droptest_status droptest_flow_fates(const droptest_flow* flow, uint64_t first_packet, uint64_t packets,
                                                 uint64_t* mask, size_t mask_words);

/* Half-open range of elements. */
typedef struct {
  uint64_t begin;
  uint64_t end;
} droptest_range;

/* The lost elements of a message, in ascending maximal ranges. Writes the first `capacity` of them; `count` is the
 * number of all. `ranges` may be NULL with a capacity of 0. */
DROPTEST_API droptest_status droptest_flow_lost_ranges(const droptest_flow* flow, const uint64_t* mask,
                                                       uint64_t elements, droptest_type type, droptest_range* ranges,
                                                       size_t capacity, size_t* count);

/* The neutral value of a reduction takes the place of lost elements. Callers exempt other reductions (minimum, product)
 * by droptest_count_exempt(). */
typedef enum {
  DROPTEST_SUM = 0, /* sums and means: zero */
  DROPTEST_MAX = 1  /* the lowest value of the type */
} droptest_reduction;

/* The place of a message's elements. */
typedef struct {
  int32_t on_device; /* 0: host memory; 1: memory of a CUDA device */
  int32_t device;    /* number of the CUDA device */
  void* stream;      /* its cudaStream_t: the fill is done in the order of this stream; NULL: the default stream */
} droptest_memory;

/* Uses up the packets of the flow's next message and puts the neutral value of `reduction` into its lost elements.
 * `data` has `elements` elements. `memory` NULL: host memory. On a device the call returns before the fill is done;
 * the fill allocates nothing after the first calls of a stream, and a stream that is being captured into a CUDA graph
 * is refused with DROPTEST_DEVICE_ERROR, because a replay would lose the same packets again. `message` may be NULL. */
DROPTEST_API droptest_status droptest_flow_lose(droptest_flow* flow, droptest_reduction reduction, void* data,
                                                uint64_t elements, droptest_type type, const droptest_memory* memory,
                                                droptest_message* message);

/* Fills the lost elements like droptest_flow_lose(), by fates that droptest_flow_next() gave. */
DROPTEST_API droptest_status droptest_flow_fill(droptest_flow* flow, const uint64_t* mask, droptest_reduction reduction,
                                                void* data, uint64_t elements, droptest_type type,
                                                const droptest_memory* memory);

/* ---- Fates that the caller draws --------------------------------------------------------------------------------- */

/* The fates of a flow as a chain of two states: docs/fates.md says how the draws of a packet are compared with these
 * thresholds. For programs that draw fates on a device. */
typedef struct {
  uint64_t seed;
  uint64_t first_packet; /* index of the flow's first packet; those of later messages follow on each other */
  uint64_t payload_bytes;
  uint64_t to_bad;       /* transition draws below it move either state to bad */
  uint64_t to_good;      /* transition draws not below it move either state to good */
  uint64_t lost_in_good; /* emission draws below it lose a packet in the good state */
  uint64_t lost_in_bad;  /* emission draws below it lose a packet in the bad state */
  int32_t middle_swaps;  /* transition draws in between swap the state (1) or keep it (0) */
} droptest_law;

/* Gives the law of a flow. Refused with DROPTEST_CONFIG_ERROR that names the member, if the fates or the values in
 * place of lost packets need more: other loss processes than none, bernoulli and gilbert_elliott, a recovery, another
 * fill than zero, and burst_scope "message". */
DROPTEST_API droptest_status droptest_flow_law(const droptest_flow* flow, droptest_law* law);

/* Uses up the packets of the flow's next messages, and counts them: their losses happened elsewhere, such as on a
 * device. `bytes` is the payload of all messages: each message has at least a packet, and may end with a short one.
 * `lost` is the number of packets that are lost; it may be NULL. The packets are taken as evenly spread over the
 * messages, which decides lost_bytes of short packets and untouched_share; "collectives" are messages. */
DROPTEST_API droptest_status droptest_flow_count(droptest_flow* flow, uint64_t messages, uint64_t packets,
                                                 uint64_t bytes, uint64_t* lost);

/* ---- Collectives of a process group ------------------------------------------------------------------------------ */

/* The path `contribution` around the collectives that another library runs: before one, the rank's lost packets leave
 * its message; after a sum, the network's fill (count_rescale, inverse_probability) scales the result. All ranks of the
 * group get equal bits. */
typedef struct droptest_group droptest_group;

/* The collectives of a class in a process group; the same object each time. The network owns it. `members`: the world
 * ranks of the group in the order of its ranks, each once, this network's rank among them. `number`:
 * droptest_link.group. */
DROPTEST_API droptest_status droptest_group_open(droptest_network* network, droptest_class traffic_class,
                                                 uint32_t number, const int32_t* members, int32_t member_count,
                                                 droptest_group** group);

/* Before an inner all-reduce or reduce-scatter: uses up the packets of the group's next message, which is this rank's
 * whole input, and fills the lost ones in place. The members call it in one order. `unfinished_sum` is the number of
 * the sum, from 1, if droptest_group_finish_reduce() has work to do and must follow; else 0, and
 * droptest_group_finish_reduce() is not called. `message` and `unfinished_sum` may be NULL; without the latter a
 * network that needs it is refused. */
DROPTEST_API droptest_status droptest_group_reduce(droptest_group* group, droptest_reduction reduction, void* data,
                                                   uint64_t elements, droptest_type type, const droptest_memory* memory,
                                                   droptest_message* message, uint64_t* unfinished_sum);

/* Scales the results of the unfinished sum of that number, once, after the inner collective; sums may be finished in
 * any order. The results are elements first_element onwards of the message: all of an all-reduce, this rank's part of a
 * reduce-scatter. */
DROPTEST_API droptest_status droptest_group_finish_reduce(droptest_group* group, uint64_t sum, void* data,
                                                          uint64_t first_element, uint64_t elements,
                                                          const droptest_memory* memory);

/* Before an inner all-gather (on every rank) or broadcast (on the root): uses up the packets of this rank's message,
 * and puts zeros into the lost ones in place. The message must be a copy if the program reads its input later. */
DROPTEST_API droptest_status droptest_group_gather(droptest_group* group, void* data, uint64_t elements,
                                                   droptest_type type, const droptest_memory* memory,
                                                   droptest_message* message);

/* ---- Counts ------------------------------------------------------------------------------------------------------ */

typedef struct {
  uint64_t messages;
  uint64_t packets;
  uint64_t bytes; /* payload bytes */
  uint64_t lost;  /* lost packets, before any recovery */
  uint64_t lost_bytes;
  double loss_rate; /* expected by the process, over the packets so far */
  double z;         /* lost - expected, in standard deviations; infinite if the fates are certain and differ */
  uint64_t digest;  /* digest of all fates, as in loss_statistics.json */
} droptest_counts;

/* The counts of a flow so far; zero if another rank counts the link. */
DROPTEST_API droptest_status droptest_flow_counts(const droptest_flow* flow, droptest_counts* counts);

/* Draws the fates of the link's first `packets` packets again, and compares their digest with the one that another rank
 * or another run has counted (droptest_counts, loss_statistics.json). DROPTEST_MISMATCH if they differ: the message
 * has the link and both digests. The flow need not be counted here. Refused if the digest depends on more than the
 * packet index: with a recovery, with burst_scope "message", for losses that change over steps, and for patterns and
 * clocks. */
DROPTEST_API droptest_status droptest_flow_verify(const droptest_flow* flow, uint64_t packets, uint64_t digest);

/* Functions that write JSON put at most `size` bytes with a final 0 into `text`, and the bytes of the whole text with
 * its final 0 into `needed`. They write nothing if it does not fit; `text` may be NULL with a size of 0. */

/* The report of `droptest fates --format json` of the flow's link, for the indices of droptest_flow_fates(). */
DROPTEST_API droptest_status droptest_flow_report(const droptest_flow* flow, uint64_t first_packet, uint64_t packets,
                                                  char* text, size_t size, size_t* needed);

/* This rank's counts in the format of loss_statistics.json (docs/records.md), with an entry for each link. */
DROPTEST_API droptest_status droptest_network_statistics(const droptest_network* network, char* text, size_t size,
                                                         size_t* needed);

/* Writes this rank's counts into `folder`, and loss_statistics.json there with the counts of all ranks that have
 * written theirs so far: the last rank's call completes it. Ranks may be processes on several machines with one file
 * system. `folder` NULL: the member "statistics" of the network; without it nothing is written. */
DROPTEST_API droptest_status droptest_network_write_statistics(droptest_network* network, const char* folder);

#ifdef __cplusplus
}
#endif

#endif /* DROPTEST_H */
