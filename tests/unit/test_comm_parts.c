/* The parts of links that need no peer: hashes, addresses, networks, frames. */
#include "tests/unit/check.h"

#include "base/rng.h"
#include "comm/link/address.h"
#include "comm/link/link.h"
#include "comm/link/link_state.h"

#include <stdlib.h>

static void hex(const uint8_t *bytes, char *text) {
    for (int i = 0; i < 32; i++) (void)snprintf(text + 2 * i, 3, "%02x", bytes[i]);
}

TEST(comm_sha256_gives_the_standards_vectors) {
    static const struct {
        const char *text, *digest;
        int repeat;
    } cases[] = {{"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", 1},
                 {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", 1},
                 {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                  "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1", 1},
                 {"a", "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0", 1000000}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ravel__sha256 h;
        uint8_t digest[32];
        char text[65];
        ravel__sha256_begin(&h);
        for (int k = 0; k < cases[i].repeat; k++) ravel__sha256_add(&h, cases[i].text, strlen(cases[i].text));
        ravel__sha256_end(&h, digest);
        hex(digest, text);
        CHECK_STR(text, cases[i].digest);
    }
}

TEST(comm_hmac_gives_the_standards_vectors) { /* RFC 4231, cases 1, 2 and 6 */
    char long_key[131], text[65];
    uint8_t digest[32];
    ravel__hmac h;
    memset(long_key, 0xaa, sizeof long_key);
    static const char twenty[20] = {11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11};
    const struct {
        const char *key;
        size_t bytes;
        const char *data, *digest;
    } cases[] = {
        {twenty, 20, "Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
        {"Jefe", 4, "what do ya want for nothing?", "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
        {long_key, 131, "Test Using Larger Than Block-Size Key - Hash Key First",
         "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ravel__hmac_begin(&h, cases[i].key, cases[i].bytes);
        ravel__hmac_add(&h, cases[i].data, strlen(cases[i].data));
        ravel__hmac_end(&h, digest);
        hex(digest, text);
        CHECK_STR(text, cases[i].digest);
    }
}

TEST(comm_address_reads_what_it_writes_and_says_what_is_none) {
    static const char *const good[] = {"127.0.0.1:80", "[::1]:65535", "unix:/tmp/a.sock", "unix:@name", "10.1.2.3:0"};
    static const char *const bad[] = {"", "host", "::1:80", "1.2.3.4:", "1.2.3.4:65536", "1.2.3.4:8x", "unix:", ":-1"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        ravel__address at;
        ravel_error err = RAVEL_ERROR_INIT;
        char text[RAVEL__ADDRESS_TEXT];
        CHECK_OK(ravel__address_parse(good[i], strlen(good[i]), &at, &err), &err);
        CHECK_STR(ravel__address_format(&at, text), good[i]);
        CHECK_EQ(ravel__address_is_local(&at), strncmp(good[i], "10.", 3) != 0);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ravel__address at;
        ravel_error err = RAVEL_ERROR_INIT;
        if (ravel__address_parse(bad[i], strlen(bad[i]), &at, &err) != RAVEL_E_ARGUMENT)
            check_fail(__FILE__, __LINE__, "\"%s\" was taken", bad[i]);
    }
}

TEST(comm_networks_hold_their_addresses) {
    static const struct {
        const char *list, *address;
        int holds;
    } cases[] = {{NULL, "1.2.3.4:1", 1},
                 {"10.0.0.0/8", "10.255.0.1:1", 1},
                 {"10.0.0.0/8", "11.0.0.1:1", 0},
                 {"192.168.1.5,10.0.0.0/9", "10.127.3.4:1", 1},
                 {"192.168.1.5,10.0.0.0/9", "10.128.3.4:1", 0},
                 {"fd00::/8", "[fd12::1]:1", 1},
                 {"fd00::/8", "[fe80::1]:1", 0},
                 {"10.0.0.0/8", "[::ffff:10.1.1.1]:1", 1},
                 {"0.0.0.0/0", "[::1]:1", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ravel__address at;
        CHECK(ravel__address_parse(cases[i].address, strlen(cases[i].address), &at, NULL) == RAVEL_OK);
        CHECK_EQ(ravel__networks_hold(cases[i].list, &at), cases[i].holds);
    }
    CHECK_EQ(ravel__networks_check("10.0.0.0/33", NULL), RAVEL_E_ARGUMENT);
    CHECK_EQ(ravel__networks_check("10.0.0.0/8,nonsense", NULL), RAVEL_E_ARGUMENT);
    CHECK(ravel__networks_check("10.0.0.0/8,::1,fd00::/8", NULL) == RAVEL_OK);
}

static ravel__mac_key random_key(ravel__rng *rng) {
    ravel__mac_key key;
    uint8_t secret[RAVEL__MAC_SECRET];
    for (size_t i = 0; i < sizeof secret; i++) secret[i] = (uint8_t)ravel__rng_next(rng);
    ravel__mac_key_make(&key, secret);
    return key;
}

TEST(comm_frames_with_one_bit_changed_are_refused) {
    ravel__rng rng = ravel__rng_seed(check_seed());
    for (uint64_t i = 0; i < 2000; i++) {
        uint8_t bytes[RAVEL__HEAD_BYTES];
        uint64_t number = i < 1000 ? i : ravel__rng_next(&rng) >> 1;
        ravel__link_head f = {RAVEL__FRAME_MESSAGE, (uint32_t)ravel__rng_next(&rng), number, ravel__rng_next(&rng),
                              ravel__rng_below(&rng, 1000)},
                         back;
        ravel__mac_key key = random_key(&rng), other = random_key(&rng);
        ravel__link_head_write(&f, &key, bytes);
        CHECK(!ravel__link_head_read(bytes, &key, number, 1000, &back));
        CHECK(back.kind == f.kind && back.id == f.id && back.bytes == f.bytes && back.number == number);
        CHECK_HAS(ravel__link_head_read(bytes, &other, number, 1000, &back), "changed on the way");
        CHECK_HAS(ravel__link_head_read(bytes, &key, number + 1, 1000, &back), "came before");
        CHECK_HAS(ravel__link_head_read(bytes, &key, number - 3, 1000, &back), "too early");
        CHECK(ravel__link_head_read(bytes, &key, number + ((uint64_t)1 << 16), 1000, &back) != NULL);
        CHECK(ravel__link_head_read(bytes, &key, number + ((uint64_t)1 << 32), 1000, &back) != NULL);
        CHECK(ravel__link_head_read(bytes, &key, number, f.bytes ? f.bytes - 1 : 0, &back) != NULL || !f.bytes);
        bytes[ravel__rng_below(&rng, sizeof bytes)] ^= (uint8_t)(1u << ravel__rng_below(&rng, 8));
        CHECK(ravel__link_head_read(bytes, &key, number, 1000, &back) != NULL);
    }
}

/* ---- tags ------------------------------------------------------------------------------------------------ */

TEST(comm_mac_siphash_gives_its_published_vectors) { /* key 00 .. 0f, texts of 0, 1, 2, 3, 8 and 15 bytes 00 .. */
    static const struct {
        size_t bytes;
        uint64_t tag;
    } cases[] = {{0, 0x726fdb47dd0e0e31u}, {1, 0x74f839c593dc67fdu}, {2, 0x0d6c8009d9a94f5au},
                 {3, 0x85676696d7fb7e2du}, {8, 0x93f5f5799a932462u}, {15, 0xa129ca6149be45e5u}};
    const uint64_t key[2] = {0x0706050403020100u, 0x0f0e0d0c0b0a0908u};
    uint8_t text[16];
    for (int i = 0; i < 16; i++) text[i] = (uint8_t)i;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK(ravel__siphash(key, text, cases[i].bytes) == cases[i].tag);
}

/* The tag from its definition in comm/link/mac.h: padded chunks, Horner's rule with remainders by division. */
static uint64_t plain_tag(const ravel__mac_key *key, uint64_t number, const uint8_t *body, size_t bytes) {
    __extension__ typedef unsigned __int128 u128;
    const uint64_t prime = ((uint64_t)1 << 61) - 1, low = ((uint64_t)1 << 60) - 1;
    uint64_t words[4] = {number, bytes, 0, 0};
    uint8_t text[32];
    for (size_t at = 0; at < bytes; at += RAVEL__MAC_CHUNK) {
        uint8_t chunk[RAVEL__MAC_CHUNK] = {0};
        uint64_t d[2];
        size_t here = bytes - at < sizeof chunk ? bytes - at : sizeof chunk;
        memcpy(chunk, body + at, here);
        ravel__mac_digest_reference(key, chunk, (here + 31) / 32 * 32, d);
        const uint64_t three[3] = {d[0] & low, d[1] & low, d[0] >> 60 | d[1] >> 60 << 4};
        for (int w = 0; w < 3; w++)
            for (int i = 0; i < 2; i++)
                words[2 + i] = (uint64_t)(((u128)words[2 + i] * key->points[i] + three[w]) % prime);
    }
    for (int i = 0; i < 4; i++) ravel__le64(text + 8 * i, words[i]);
    return ravel__siphash(key->body, text, sizeof text);
}

TEST(comm_mac_is_the_same_however_a_body_is_cut_and_other_for_every_change) {
    enum { MOST = 9000 };
    ravel__rng rng = ravel__rng_seed(check_seed());
    uint8_t *body = malloc(MOST);
    for (int64_t i = 0; i < check_rounds(400, 20000); i++) {
        ravel__mac_key key = random_key(&rng);
        ravel__mac m;
        size_t bytes = ravel__rng_below(&rng, i % 3 ? 200 : MOST), at = 0;
        uint64_t number = ravel__rng_next(&rng);
        for (size_t k = 0; k < bytes; k++) body[k] = i % 5 ? (uint8_t)ravel__rng_next(&rng) : 0xff;
        ravel__mac_begin(&m, &key, number);
        while (at < bytes) {
            size_t part = 1 + ravel__rng_below(&rng, bytes - at);
            ravel__mac_add(&m, body + at, part);
            at += part;
        }
        uint64_t tag = ravel__mac_end(&m);
        CHECK(tag == plain_tag(&key, number, body, bytes));
        CHECK(tag != plain_tag(&key, number + 1, body, bytes));
        if (bytes == 0) continue;
        body[ravel__rng_below(&rng, bytes)] ^= (uint8_t)(1u << ravel__rng_below(&rng, 8));
        CHECK(tag != plain_tag(&key, number, body, bytes));
        CHECK(tag != plain_tag(&key, number, body, bytes - 1));
    }
    free(body);
}
