/* Authentication of the frames of a link: a tag of 64 bits that only the two ends can compute.
 *
 *   secret   32 bytes that the handshake makes for one direction of one link (HMAC-SHA256 of both greetings with the token)
 *   key      what is expanded from it
 *   tag      of a short text (a frame's head), or of a body together with the number of its frame
 *
 *     short text   SipHash-2-4(text), a pseudo-random function for short inputs
 *     body         SipHash-2-4(number, length, P1, P2)
 *                  P1, P2  polynomials modulo 2^61 - 1, with two secret points, over the digests of the body's chunks
 *                  digest  NH, two passes of 64 bits over 1,024 bytes: sum of (low + k)(high + k') of all pairs of words; pass 2
 *                          uses the same keys moved by 32 bytes
 *
 * Why a forger fails. NH gives two different chunks the same digest with a chance of 2^-32 per pass, over the choice
 * of keys (Black, Halevi, Krawczyk, Krovetz, Rogaway 1999), and moving the keys makes the passes independent: in the
 * last unit of 32 bytes in which the chunks differ, pass 2 uses keys that pass 1 has used for no difference. So two
 * bodies of one length and c chunks have equal (P1, P2) with a chance of at most 2^-64 + (3c / 2^60)^2: 2^-64 + 2^-91
 * for 4 MiB, 2^-56 for 1 TiB. These values never leave the ends: the tag is a pseudo-random function of them, of the
 * length and of the number of the frame, and a link uses a number once. A body or frame that the other end did not
 * send, or not with this number, has the right tag with a chance of 2^-64 more, as long as SipHash-2-4 cannot be told
 * from a random function. The first wrong tag ends the link and its keys, so there is one attempt per link.
 *
 * Nothing here hides what is sent. */
#ifndef RAVEL_COMM_MAC_H
#define RAVEL_COMM_MAC_H

#include <stddef.h>
#include <stdint.h>

enum { RAVEL__MAC_SECRET = 32, RAVEL__MAC_CHUNK = 1024, RAVEL__MAC_UNIT = 32 };

typedef struct ravel__mac_key {
    uint32_t words[(RAVEL__MAC_CHUNK + RAVEL__MAC_UNIT) / 4];
    uint64_t points[2]; /* below 2^60 */
    uint64_t text[2], body[2];
} ravel__mac_key;

void ravel__mac_key_make(ravel__mac_key *key, const uint8_t secret[RAVEL__MAC_SECRET]);

/* The tag of text[bytes]. Texts of different meaning have different lengths. */
uint64_t ravel__mac_text(const ravel__mac_key *key, const void *text, size_t bytes);

/* A body in pieces of any size; the tag does not depend on how it was cut. The key stays as long as the state. */
typedef struct ravel__mac {
    const ravel__mac_key *key;
    uint64_t number, total, sums[2];
    size_t held;
    uint8_t buffer[RAVEL__MAC_CHUNK];
} ravel__mac;

void ravel__mac_begin(ravel__mac *mac, const ravel__mac_key *key, uint64_t number);
void ravel__mac_add(ravel__mac *mac, const void *data, size_t bytes);
uint64_t ravel__mac_end(ravel__mac *mac);

/* The portable loop, for comparing the fast ones with it: the digests of a chunk of a multiple of 32 bytes. */
void ravel__mac_digest_reference(const ravel__mac_key *key, const uint8_t *chunk, size_t bytes, uint64_t digest[2]);
void ravel__mac_digest(const ravel__mac_key *key, const uint8_t *chunk, size_t bytes, uint64_t digest[2]);
/* SipHash-2-4 by itself, for its published vectors. */
uint64_t ravel__siphash(const uint64_t key[2], const void *text, size_t bytes);

#endif
