#include "comm/link/link_frame.h"

#include "base/assert.h"

#include <string.h>

static const char magic[8] = {'R', 'A', 'V', 'E', 'L', 'L', 'N', 'K'};

/* ---- the greeting --------------------------------------------------------------------------------------- */

void ravel__greeting_write(const ravel__greeting *g, uint8_t bytes[RAVEL__GREETING_BYTES]) {
    RAVEL_ASSERT(g->role >= RAVEL__ROLE_CONNECTS && g->role <= RAVEL__ROLE_REFUSES);
    RAVEL_ASSERT(g->hello_bytes <= RAVEL__HELLO_MOST);
    memset(bytes, 0, RAVEL__GREETING_BYTES);
    memcpy(bytes, magic, sizeof magic);
    ravel__le32(bytes + 8, RAVEL__LINK_VERSION);
    ravel__le32(bytes + 12, g->role);
    ravel__le32(bytes + 16, g->hello_bytes);
    ravel__le32(bytes + RAVEL__GREETING_KIND, g->token_kind);
    ravel__le64(bytes + 24, g->most_body);
    memcpy(bytes + 32, g->nonce, sizeof g->nonce);
}

const char *ravel__greeting_read(const uint8_t bytes[RAVEL__GREETING_BYTES], uint32_t role, ravel__greeting *g) {
    if (!ravel__greeting_begins(bytes)) return "the peer does not speak Ravel's link protocol";
    if (ravel__read32(bytes + 8) != RAVEL__LINK_VERSION) return "the peer speaks another version of the link protocol";
    g->role = ravel__read32(bytes + 12);
    g->hello_bytes = ravel__read32(bytes + 16);
    g->token_kind = ravel__read32(bytes + RAVEL__GREETING_KIND);
    g->most_body = ravel__read64(bytes + 24);
    memcpy(g->nonce, bytes + 32, sizeof g->nonce);
    if (g->role != role && (g->role != RAVEL__ROLE_REFUSES || role != RAVEL__ROLE_ACCEPTS))
        return "both sides connect, or both accept";
    if (g->hello_bytes > RAVEL__HELLO_MOST) return "the peer's hello is too long";
    if (g->token_kind >= RAVEL__TOKEN_KINDS) return "the peer has an unknown kind of token";
    return NULL;
}

int ravel__greeting_begins(const uint8_t *bytes) {
    return memcmp(bytes, magic, sizeof magic) == 0;
}

void ravel__peer_text(const uint8_t *from, size_t bytes, char *text, size_t room) {
    RAVEL_ASSERT(room > 0);
    size_t count = bytes < room - 1 ? bytes : room - 1;
    for (size_t i = 0; i < count; i++) text[i] = from[i] >= ' ' && from[i] <= '~' ? (char)from[i] : '?';
    text[count] = '\0';
}

const char *ravel__token_mismatch(uint32_t accepts, uint32_t connects) {
    static const char *const why[RAVEL__TOKEN_KINDS][RAVEL__TOKEN_KINDS] = {
        [RAVEL__TOKEN_NONE] = {"the handshake was changed on the way",
                               "it takes peers without a token, and this side has one; set RAVEL_TOKEN=none here too",
                               "it takes peers without a token; set RAVEL_TOKEN=none here too"},
        [RAVEL__TOKEN_GIVEN] = {"it needs a token; give this side the same (RAVEL_TOKEN)", "the tokens differ",
                                "it needs a token; give this side the same (RAVEL_TOKEN)"},
        [RAVEL__TOKEN_USER] = {"it was given no token, so it takes processes of its own user only, which prove it by a "
                               "token in that user's cache folder; leave out RAVEL_TOKEN=none, or set it on both sides",
                               "it was given no token, and this side was; give both the same (RAVEL_TOKEN)",
                               "neither side was given a token, and they find different ones in their users' cache "
                               "folders; give both the same (RAVEL_TOKEN)"},
    };
    RAVEL_ASSERT(accepts < RAVEL__TOKEN_KINDS && connects < RAVEL__TOKEN_KINDS);
    return why[accepts][connects];
}

void ravel__link_proof(const char *token, const char *word, const uint8_t *connects, size_t connects_bytes,
                       const uint8_t *accepts, size_t accepts_bytes, uint8_t digest[RAVEL__SHA256_BYTES]) {
    ravel__hmac h;
    ravel__hmac_begin(&h, token ? token : "", token ? strlen(token) : 0);
    ravel__hmac_add(&h, word, strlen(word) + 1);
    ravel__hmac_add(&h, connects, connects_bytes); /* its length is inside it */
    ravel__hmac_add(&h, accepts, accepts_bytes);
    ravel__hmac_end(&h, digest);
}

/* ---- frames --------------------------------------------------------------------------------------------- */

enum { TAGGED = RAVEL__HEAD_BYTES - 8 + 8 }; /* the head after its tag, and the whole number */

static uint64_t tag_of(const uint8_t *bytes, const ravel__mac_key *key, uint64_t number) {
    uint8_t text[TAGGED];
    memcpy(text, bytes + 8, RAVEL__HEAD_BYTES - 8);
    ravel__le64(text + RAVEL__HEAD_BYTES - 8, number);
    return ravel__mac_text(key, text, sizeof text);
}

void ravel__link_head_write(const ravel__link_head *f, const ravel__mac_key *key, uint8_t bytes[RAVEL__HEAD_BYTES]) {
    ravel__le32(bytes + 8, f->type | (uint32_t)(f->number & 0xffff) << 16);
    ravel__le32(bytes + 12, f->kind);
    ravel__le64(bytes + 16, f->id);
    ravel__le64(bytes + 24, f->bytes);
    ravel__le64(bytes, tag_of(bytes, key, f->number));
}

/* What a wrong tag means: the head is that of another frame of this link, near this one, or of none. */
static const char *misplaced(const uint8_t *bytes, const ravel__mac_key *key, uint64_t number) {
    int16_t away = (int16_t)(uint16_t)((ravel__read32(bytes + 8) >> 16) - (uint32_t)number);
    if (away == 0 || ravel__read64(bytes) != tag_of(bytes, key, number + (uint64_t)(int64_t)away))
        return "a frame that was changed on the way, or was made by somebody else";
    return away < 0 ? "a frame that came before (it was repeated on the way)"
                    : "a frame too early (one was lost or moved on the way)";
}

const char *ravel__link_head_read(const uint8_t bytes[RAVEL__HEAD_BYTES], const ravel__mac_key *key, uint64_t number,
                                  uint64_t most, ravel__link_head *f) {
    if (ravel__read64(bytes) != tag_of(bytes, key, number)) return misplaced(bytes, key, number);
    f->type = ravel__read32(bytes + 8) & 0xffff;
    f->number = number;
    f->kind = ravel__read32(bytes + 12);
    f->id = ravel__read64(bytes + 16);
    f->bytes = ravel__read64(bytes + 24);
    if (f->type < RAVEL__FRAME_MESSAGE || f->type >= RAVEL__FRAME_TYPES) return "a frame of an unknown type";
    if (f->bytes > most) return "a frame longer than this side takes";
    if (f->type == RAVEL__FRAME_HEARTBEAT && f->bytes) return "a heartbeat with a body";
    if (f->type == RAVEL__FRAME_RING && f->bytes) return "descriptors with a body";
    if ((f->type == RAVEL__FRAME_SHARED || f->type == RAVEL__FRAME_SHARED_RAW) && !f->bytes) return "an empty body";
    if (f->type == RAVEL__FRAME_GOODBYE && f->bytes > RAVEL__HELLO_MOST) return "a goodbye that is too long";
    return NULL;
}

/* ---- shared memory -------------------------------------------------------------------------------------- */

static uint32_t check_record(const ravel__mac_key *key, uint64_t number, uint64_t at, uint32_t piece) {
    uint8_t text[20]; /* shorter than a head's */
    ravel__le64(text, number);
    ravel__le64(text + 8, at);
    ravel__le32(text + 16, piece);
    return (uint32_t)ravel__mac_text(key, text, sizeof text);
}

void ravel__ring_record_write(const ravel__mac_key *key, uint64_t number, uint64_t at, uint32_t piece,
                              uint8_t bytes[RAVEL__RECORD_BYTES]) {
    ravel__le32(bytes, piece);
    ravel__le32(bytes + 4, check_record(key, number, at, piece));
}

const char *ravel__ring_record_read(const uint8_t bytes[RAVEL__RECORD_BYTES], const ravel__mac_key *key,
                                    uint64_t number, uint64_t at, uint64_t left, uint32_t *piece) {
    *piece = ravel__read32(bytes);
    if (ravel__read32(bytes + 4) != check_record(key, number, at, *piece)) return "a damaged record";
    if (*piece == 0 || *piece > RAVEL__RING_BYTES || *piece > left) return "a piece longer than its body or its ring";
    return NULL;
}

int ravel__ring_room(uint64_t produced, uint64_t freed, uint64_t consumed, uint64_t *room) {
    if (consumed < freed || consumed > produced || produced - consumed > RAVEL__RING_BYTES) return 0;
    *room = RAVEL__RING_BYTES - (produced - consumed);
    RAVEL_ASSERT(*room <= RAVEL__RING_BYTES);
    return 1;
}
