/* The decoders that a stranger's bytes meet first: greetings, frame heads, addresses, networks. What is taken is in
 * range, and written again it is the same. */
#include "comm/link/address.h"
#include "comm/link/link_frame.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static ravel__mac_key key;

static void try_greeting(const uint8_t *data) {
    ravel__greeting g;
    uint8_t again[RAVEL__GREETING_BYTES];
    if (!ravel__greeting_read(data, RAVEL__ROLE_ACCEPTS, &g) && g.role == RAVEL__ROLE_REFUSES) {
        char text[64];
        ravel__peer_text(data + 32, 32 + g.hello_bytes % 32, text, sizeof text);
        if (strlen(text) != 32 + g.hello_bytes % 32) abort();
        (void)ravel__token_mismatch(g.token_kind, g.token_kind);
    }
    if (ravel__greeting_read(data, RAVEL__ROLE_CONNECTS, &g)) return;
    if (g.hello_bytes > RAVEL__HELLO_MOST || g.role != RAVEL__ROLE_CONNECTS) abort();
    ravel__greeting_write(&g, again);
    if (memcmp(again, data, 24) != 0 || memcmp(again + 24, data + 24, 40) != 0) abort();
}

static void try_frame(const uint8_t *data) {
    ravel__link_head f;
    uint8_t again[RAVEL__HEAD_BYTES], fixed[RAVEL__HEAD_BYTES];
    memcpy(fixed, data, sizeof fixed);
    f = (ravel__link_head){ravel__read32(data + 8) & 0xffff, ravel__read32(data + 12), ravel__read64(data) % 5,
                           ravel__read64(data + 16), ravel__read64(data + 24)};
    (void)ravel__link_head_read(data, &key, 3, 1 << 20, &f);
    ravel__link_head_write(&f, &key, fixed); /* the tag is right: what else is looked at? */
    if (ravel__link_head_read(fixed, &key, 3, 1 << 20, &f)) return;
    if (f.number != 3 || f.bytes > 1 << 20 || f.type < 1 || f.type >= RAVEL__FRAME_TYPES) abort();
    ravel__link_head_write(&f, &key, again);
    if (memcmp(again, fixed, sizeof again) != 0) abort();
}

/* Records and the words of a ring: what is taken stays inside body and ring. */
static void try_ring(const uint8_t *data) {
    uint8_t record[RAVEL__RECORD_BYTES];
    uint32_t piece;
    uint64_t left = ravel__read64(data + 8) % (16 << 20), produced = ravel__read64(data + 16),
             freed = ravel__read64(data + 24), consumed = ravel__read64(data + 32), room = 0;
    (void)ravel__ring_record_read(data, &key, 3, 0, left, &piece);
    ravel__ring_record_write(&key, 3, 0, ravel__read32(data), record); /* the check is right */
    if (!ravel__ring_record_read(record, &key, 3, 0, left, &piece) &&
        (piece == 0 || piece > left || piece > RAVEL__RING_BYTES))
        abort();
    if (ravel__ring_room(produced, freed, consumed, &room) &&
        (room > RAVEL__RING_BYTES || consumed < freed || produced - consumed + room != RAVEL__RING_BYTES))
        abort();
}

static void try_text(const uint8_t *data, size_t bytes) {
    ravel__address at;
    char *text = malloc(bytes + 1), words[RAVEL__ADDRESS_TEXT];
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    /* Only what needs no look-up of a name. */
    if (strncmp(text, "unix:", 5) == 0 || strspn(text, "0123456789.:[]abcdef") == strlen(text))
        if (!ravel__address_parse(text, strlen(text), &at, NULL)) (void)ravel__address_format(&at, words);
    if (!ravel__networks_check(text, NULL)) {
        (void)ravel__address_parse("10.1.2.3:4", 10, &at, NULL);
        (void)ravel__networks_hold(text, &at);
    }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    uint8_t room[RAVEL__GREETING_BYTES] = {0};
    memcpy(room, data, bytes < sizeof room ? bytes : sizeof room);
    if (!key.text[0]) ravel__mac_key_make(&key, (const uint8_t *)"a secret of thirty-two bytes ...");
    try_greeting(room);
    try_frame(room);
    try_ring(room);
    try_text(data, bytes < 300 ? bytes : 300);
    return 0;
}
