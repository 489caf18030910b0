/* What goes over a link, byte by byte. All numbers are little-endian. Nothing here reads a socket: these are the first
 * decoders of untrusted bytes, fuzzed by tests/fuzz/fuzz_link.c.
 *
 *     connecting side                                 accepting side
 *     greeting  (96 bytes + hello)          -->
 *                                           <--       greeting
 *     proof     (32 bytes)                  -->                       HMAC of both greetings with the token
 *                                           <--       proof           sent only after the first one was right
 *     frames                               <-->       frames
 *
 *     greeting   0 "RAVELLNK"  8 u32 version  12 u32 role (1 connects, 2 accepts, 3 refuses)  16 u32 hello bytes (0 .. 1024)
 *               20 u32 kind of token (0 none, 1 given, 2 the user's own: comm/link/token.h)
 *               24 u64 most bytes of a body that this side takes  32 nonce[32]  64 zero[32]  96 hello
 *     refusal    a greeting of role 3 instead of the accepting side's greeting or proof: the hello is the reason, a sentence,
 *               and at 24 there is 1 if the peer may try again soon
 *     frame      0 u64 tag of the head   8 u16 type  10 u16 number of the frame, its low bits  12 u32 kind  16 u64 id  24 u64 bytes
 *               32 body[bytes] and, if bytes > 0 and the type is not RAW, u64 tag of the body
 *     In a SHARED frame the body is in shared memory (link_memory.c), and records take its place, one per piece:
 *                0 u32 bytes of the piece  4 u32 low half of its tag
 *
 * Tags are keyed (comm/link/mac.h) by a secret that the handshake makes for this link and direction, and cover the
 * number of the frame, which counts from 0 and is never used again. So bytes that were changed, lost, repeated,
 * reordered, or taken from another link or direction are detected, whoever did it, unless he knows the token. RAW
 * frames are taken only if nobody can be in between: inside a machine, or inside TLS, whose records have tags. */
#ifndef RAVEL_COMM_LINK_FRAME_H
#define RAVEL_COMM_LINK_FRAME_H

#include "comm/link/mac.h"
#include "comm/link/sha256.h"

enum {
    RAVEL__GREETING_BYTES = 96,
    RAVEL__GREETING_KIND = 20, /* where the kind of token is */
    RAVEL__HELLO_MOST = 1024,
    RAVEL__HEAD_BYTES = 32,
    RAVEL__SUM_BYTES = 8,
    RAVEL__RECORD_BYTES = 8,
    RAVEL__LINK_VERSION = 5
};
enum { RAVEL__ROLE_CONNECTS = 1, RAVEL__ROLE_ACCEPTS, RAVEL__ROLE_REFUSES };
enum { RAVEL__TOKEN_NONE, RAVEL__TOKEN_GIVEN, RAVEL__TOKEN_USER, RAVEL__TOKEN_KINDS };
/* RAW: a message whose body has no tag here, since the receiver verifies its bytes itself, or TLS does; not over plain
 * TCP. RING: descriptors of shared memory come with it. SHARED and SHARED_RAW: MESSAGE and RAW whose body is there. */
enum {
    RAVEL__FRAME_MESSAGE = 1,
    RAVEL__FRAME_HEARTBEAT,
    RAVEL__FRAME_GOODBYE,
    RAVEL__FRAME_RAW,
    RAVEL__FRAME_RING,
    RAVEL__FRAME_SHARED,
    RAVEL__FRAME_SHARED_RAW,
    RAVEL__FRAME_TYPES
};
enum { RAVEL__RING_BYTES = 4 << 20, RAVEL__SHARED_LEAST = 64 << 10 };
#define RAVEL__RING_READY 0x52696e6752656164u

typedef struct ravel__greeting {
    uint32_t role, hello_bytes, token_kind;
    uint64_t most_body;
    uint8_t nonce[32];
} ravel__greeting;

void ravel__greeting_write(const ravel__greeting *g, uint8_t bytes[RAVEL__GREETING_BYTES]);
/* NULL, or what is wrong with it, in words. A refusal is valid where the accepting side's greeting is. */
const char *ravel__greeting_read(const uint8_t bytes[RAVEL__GREETING_BYTES], uint32_t role, ravel__greeting *g);
/* The beginning of a greeting or refusal; a proof is one by a chance of 2^-64. */
int ravel__greeting_begins(const uint8_t *bytes);
/* A peer's words as text that a terminal can show: at most room - 1 characters, others than printable ASCII as "?". */
void ravel__peer_text(const uint8_t *from, size_t bytes, char *text, size_t room);
/* Why two proofs differ, to the connecting side: kinds of token of the accepting and of the connecting side. */
const char *ravel__token_mismatch(uint32_t accepts, uint32_t connects);

/* HMAC of both greetings (with their hellos; the connecting side's first) and a word: "connects" and "accepts" for the
 * proofs, "connects key" and "accepts key" for the secrets of the two directions. */
void ravel__link_proof(const char *token, const char *word, const uint8_t *connects, size_t connects_bytes,
                       const uint8_t *accepts, size_t accepts_bytes, uint8_t digest[RAVEL__SHA256_BYTES]);

typedef struct ravel__link_head {
    uint32_t type, kind;
    uint64_t number, id, bytes;
} ravel__link_head;

void ravel__link_head_write(const ravel__link_head *f, const ravel__mac_key *key, uint8_t bytes[RAVEL__HEAD_BYTES]);
/* NULL, or what is wrong. `number`: of the next frame of this link; most: the largest body that is taken. */
const char *ravel__link_head_read(const uint8_t bytes[RAVEL__HEAD_BYTES], const ravel__mac_key *key, uint64_t number,
                                  uint64_t most, ravel__link_head *f);

/* A record: the piece of `bytes` that lies at `at` in the body of frame `number`. */
void ravel__ring_record_write(const ravel__mac_key *key, uint64_t number, uint64_t at, uint32_t piece,
                              uint8_t bytes[RAVEL__RECORD_BYTES]);
/* NULL, or what is wrong. left: bytes of the body from `at` on. */
const char *ravel__ring_record_read(const uint8_t bytes[RAVEL__RECORD_BYTES], const ravel__mac_key *key,
                                    uint64_t number, uint64_t at, uint64_t left, uint32_t *piece);
/* Free bytes of a ring after `produced` bytes were written, of which the receiver reports `consumed`, and before that
 * `freed`. 0: the report is impossible. */
int ravel__ring_room(uint64_t produced, uint64_t freed, uint64_t consumed, uint64_t *room);

static inline void ravel__le32(uint8_t *to, uint32_t x) {
    for (int i = 0; i < 4; i++) to[i] = (uint8_t)(x >> 8 * i);
}
static inline void ravel__le64(uint8_t *to, uint64_t x) {
    for (int i = 0; i < 8; i++) to[i] = (uint8_t)(x >> 8 * i);
}
static inline uint32_t ravel__read32(const uint8_t *from) {
    return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
}
static inline uint64_t ravel__read64(const uint8_t *from) {
    return ravel__read32(from) | (uint64_t)ravel__read32(from + 4) << 32;
}

#endif
