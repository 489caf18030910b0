/* Links: handshakes, messages, lost peers, and bytes that nobody should trust. Both ends live in this process and are
 * polled in turn. */
#include "tests/unit/check.h"
#include "tests/unit/ports.h"

#include "base/system/clock.h"
#include "base/rng.h"
#include "comm/link/address.h"
#include "comm/link/link.h"
#include "comm/link/link_state.h"
#include "comm/link/token.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- two ends ------------------------------------------------------------------------------------------- */

enum { ROOMS = 16 };

typedef struct end {
    ravel__hub *hub;
    ravel__link *link; /* the last that came up */
    int ups, downs, sent, wrong, refuses;
    int64_t messages;
    uint64_t next_id;
    char why[700], hello[64];
    void *rooms[ROOMS]; /* bodies that have begun to arrive; a link that breaks leaves its own here until the end */
} end;

static uint8_t byte_of(uint64_t id, int64_t i) {
    return (uint8_t)(ravel__mix64(id * 77 + (uint64_t)(i / 8)) >> i % 8 * 8);
}

static int on_up(void *user, ravel__link *link, const void *hello, int32_t bytes) {
    end *e = user;
    e->ups++;
    e->link = link;
    (void)snprintf(e->hello, sizeof e->hello, "%.*s", bytes, (const char *)hello);
    return !e->refuses;
}
static void *on_place(void *user, ravel__link *link, const ravel__message *head) {
    end *e = user;
    (void)link;
    for (int i = 0; i < ROOMS && head->kind != 9; i++)
        if (!e->rooms[i]) return e->rooms[i] = malloc((size_t)head->bytes);
    return NULL;
}
static void give_room_back(end *e, const void *body) {
    for (int i = 0; i < ROOMS; i++)
        if (body && e->rooms[i] == body) free(e->rooms[i]), e->rooms[i] = NULL;
}
static void on_message(void *user, ravel__link *link, const ravel__message *head, void *body) {
    end *e = user;
    uint8_t *bytes = body;
    (void)link;
    e->messages++;
    e->wrong += head->id != e->next_id++;
    for (int64_t i = 0; bytes && i < head->bytes; i++) e->wrong += bytes[i] != byte_of(head->id, i);
    give_room_back(e, body);
}
static void on_sent(void *user, ravel__link *link, void *token) {
    (void)link;
    ((end *)user)->sent++;
    free(token);
}
static void on_down(void *user, ravel__link *link, const char *why) {
    end *e = user;
    e->downs++;
    if (e->link == link) e->link = NULL;
    (void)snprintf(e->why, sizeof e->why, "%s", why);
}

static ravel_status open_end(end *e, const ravel__hub_options *o, ravel_error *err) {
    ravel__hub_handler h = {e, on_up, on_place, on_message, on_sent, on_down};
    *e = (end){0};
    return ravel__hub_open(o, &h, &e->hub, err);
}

/* Polls both until `until` holds or a minute has passed. */
#define POLL_UNTIL(a, b, until)                                                                           \
    for (int64_t poll_end = ravel__clock_ns() + 60000000000; !(until) && ravel__clock_ns() < poll_end;) { \
        (void)ravel__hub_poll((a).hub, 0.001, NULL, NULL);                                                \
        if ((b).hub) (void)ravel__hub_poll((b).hub, 0.001, NULL, NULL);                                   \
    }

static ravel__hub_options options_for(const char *listen, const char *token) {
    ravel__hub_options o;
    ravel__hub_options_default(&o);
    o.listen = listen;
    o.token = token;
    return o;
}

#define LONG_NAME "a-name-that-is-so-long-that-a-sentence-with-it-twice-is-long-too"

/* Abstract names of this process: the same tests may run side by side. */
static const char *name_of(const char *what) {
    static char name[100];
    (void)snprintf(name, sizeof name, "unix:@ravel-link-%s-%d", what, (int)getpid());
    return name;
}

static int connect_ends(end *server, end *client, const char *listen) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__link *link;
    ravel__hub_options s = options_for(listen, "secret"), c = options_for(NULL, "secret");
    if (open_end(server, &s, &err) || open_end(client, &c, &err)) return EXPECT(!"open"), 0;
    if (ravel__hub_connect(client->hub, ravel__hub_address(server->hub), "client", 6, 60, NULL, &link, &err)) return 0;
    POLL_UNTIL(*server, *client, server->ups && client->ups);
    return EXPECT(server->ups == 1 && client->ups == 1);
}

static void close_ends(end *server, end *client) {
    ravel__hub_free(client->hub);
    ravel__hub_free(server->hub);
    for (int i = 0; i < ROOMS; i++) free(client->rooms[i]), free(server->rooms[i]);
}

static void send_some(end *e, ravel__rng *rng, uint64_t id) {
    static const int64_t sizes[] = {0, 1, 63, 64, 65, 4096, 65504, 65536, 300000, 3000000};
    ravel__message head = {(uint32_t)ravel__rng_below(rng, 8), id, sizes[ravel__rng_below(rng, 10)]};
    uint8_t *body = malloc((size_t)head.bytes + 1);
    for (int64_t i = 0; i < head.bytes; i++) body[i] = byte_of(id, i);
    int copies = ravel__rng_below(rng, 2) != 0;
    EXPECT(!ravel__link_send(e->link, &head, body, copies ? NULL : body, NULL));
    e->sent += copies;
    if (copies) free(body);
}

TEST(comm_link_carries_messages_both_ways_over_every_kind_of_socket) {
    char folder[] = "/tmp/ravel-link-XXXXXX", path[64];
    CHECK(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "unix:%s/socket", folder);
    const char *const listens[] = {"127.0.0.1:0", "[::1]:0", path, name_of("each")};
    for (int k = 0; k < 4; k++) {
        end server, client;
        if (k == 1 && !ports_free("::1")) continue;
        ravel__rng rng = ravel__rng_seed(check_seed() + (uint64_t)k);
        enum { COUNT = 60 };
        CHECK(connect_ends(&server, &client, listens[k]));
        CHECK_STR(server.hello, "client");
        CHECK_STR(client.hello, "");
        char who[120]; /* a peer at a Unix socket has no address */
        (void)snprintf(who, sizeof who, "process %d at %s", (int)getpid(), k >= 2 ? listens[k] : "");
        CHECK(k < 2 || strcmp(server.link->peer, who) == 0);
        for (uint64_t i = 0; i < COUNT; i++) {
            send_some(&client, &rng, i);
            send_some(&server, &rng, i);
            (void)ravel__hub_poll(server.hub, 0, NULL, NULL);
            (void)ravel__hub_poll(client.hub, 0, NULL, NULL);
        }
        POLL_UNTIL(server, client, server.messages == COUNT && client.messages == COUNT && server.sent == COUNT);
        CHECK_EQ(server.messages, COUNT);
        CHECK_EQ(client.messages, COUNT);
        CHECK(server.sent == COUNT && client.sent == COUNT && !server.wrong && !client.wrong);
        CHECK_EQ(ravel__link_unsent(client.link), 0);
        CHECK_EQ(ravel__link_shared(client.link) > 0, k >= 2); /* long bodies, inside a machine */
        CHECK_EQ(ravel__link_shared(server.link) > 0, k >= 2);
        ravel__link_close(client.link, "no more work");
        POLL_UNTIL(server, client, server.downs);
        CHECK_HAS(server.why, "closed the link: no more work");
        CHECK_EQ(client.downs, 0);
        close_ends(&server, &client);
    }
    CHECK_EQ(rmdir(folder), 0); /* the socket is gone */
}

TEST(comm_link_queues_what_the_socket_does_not_take_of_small_frames) {
    enum { BYTES = 1000, MORE = 50 };
    const char *const listens[] = {"127.0.0.1:0", name_of("small")};
    for (int k = 0; k < 2; k++) {
        end server, client;
        uint8_t body[BYTES];
        CHECK(connect_ends(&server, &client, listens[k]));
        int64_t count = 0, queued = 0;
        for (uint64_t id = 0; queued < MORE && id < 100000; id++, count++) {
            ravel__message head = {1, id, BYTES};
            for (int64_t i = 0; i < BYTES; i++) body[i] = byte_of(id, i);
            CHECK(!ravel__link_send(client.link, &head, body, NULL, NULL));
            queued += ravel__link_unsent(client.link) > 0;
        }
        CHECK_EQ(queued, MORE);
        POLL_UNTIL(server, client, server.messages == count || server.downs);
        CHECK(server.messages == count && !server.wrong && !server.downs);
        CHECK_EQ(ravel__link_unsent(client.link), 0);
        close_ends(&server, &client);
    }
}

/* A long body from the client to the server, whole. */
static int is_carried(end *server, end *client, uint64_t id, int64_t bytes) {
    ravel__message head = {1, id, bytes};
    uint8_t *body = malloc((size_t)bytes);
    int64_t before = server->messages;
    for (int64_t i = 0; i < bytes; i++) body[i] = byte_of(id, i);
    (void)ravel__link_send(client->link, &head, body, NULL, NULL);
    free(body);
    POLL_UNTIL(*server, *client, server->messages > before || server->downs || client->downs);
    return server->messages == before + 1 && !server->wrong;
}

TEST(comm_link_without_shared_memory_on_one_side_carries_the_same) {
    for (int k = 0; k < 3; k++) {
        end server, client;
        ravel_error err = RAVEL_ERROR_INIT;
        ravel__link *link;
        ravel__hub_options s = options_for(name_of("unshared"), "t"), c = options_for(NULL, "t");
        s.shared = k != 0, c.shared = k != 1;
        CHECK_OK(open_end(&server, &s, &err), &err);
        CHECK_OK(open_end(&client, &c, &err), &err);
        CHECK_OK(ravel__hub_connect(client.hub, s.listen, NULL, 0, 60, NULL, &link, &err), &err);
        POLL_UNTIL(server, client, server.ups && client.ups);
        for (uint64_t id = 0; id < 6; id++) CHECK(is_carried(&server, &client, id, 3000000));
        CHECK_EQ(ravel__link_shared(client.link) > 0, k == 2);
        close_ends(&server, &client);
    }
}

TEST(comm_link_checks_what_the_peer_writes_into_shared_memory) {
    static const uint64_t words[] = {UINT64_MAX, 1, 1ull << 40}; /* less than before, or more than was sent */
    for (size_t k = 0; k < sizeof words / sizeof *words; k++) {
        end server, client;
        CHECK(connect_ends(&server, &client, name_of("garbage")));
        for (uint64_t id = 0; id < 3; id++) CHECK(is_carried(&server, &client, id, 3000000));
        CHECK(ravel__link_shared(client.link) > RAVEL__RING_BYTES);
        memcpy(server.link->rings[RING_IN].map + 64, &words[k], 8); /* consumed */
        CHECK(!is_carried(&server, &client, 3, 3000000));
        CHECK_EQ(client.downs, 1);
        CHECK_HAS(client.why, "garbage");
        close_ends(&server, &client);
    }
}

TEST(comm_link_maps_no_memory_that_the_peer_could_take_away) {
    end server, client;
    CHECK(connect_ends(&server, &client, name_of("unsealed")));
    for (int k = 0; k < 3; k++) {
        int fd = memfd_create("test", MFD_ALLOW_SEALING), event = eventfd(0, 0), pipes[2];
        CHECK(fd >= 0 && event >= 0 && pipe(pipes) == 0);
        CHECK(ftruncate(fd, 4096 + (k == 1 ? 100 : RAVEL__RING_BYTES)) == 0);
        if (k > 0) CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
        server.link->given[0] = fd;
        server.link->given[1] = k == 2 ? pipes[1] : event; /* unsealed; of another size; no eventfd */
        ravel__ring_take(server.link);
        CHECK(!ravel__ring_is_mapped(server.link) && server.link->given[0] == -1);
        if (k == 2)
            (void)close(event);
        else
            (void)close(pipes[1]);
        (void)close(pipes[0]);
    }
    close_ends(&server, &client);
}

TEST(comm_link_with_long_bodies_in_shared_memory_is_lost_like_any_other) {
    for (int k = 0; k < 2; k++) {
        end server, client;
        ravel__message head = {1, 2, 40 << 20};
        CHECK(connect_ends(&server, &client, name_of("gone")));
        for (uint64_t id = 0; id < 2; id++) CHECK(is_carried(&server, &client, id, 300000));
        uint8_t *body = calloc(1, (size_t)head.bytes);
        CHECK(!ravel__link_send(client.link, &head, body, NULL, NULL));
        for (int i = 0; i < 3; i++) (void)ravel__hub_poll(server.hub, 0.001, NULL, NULL); /* a part of it */
        CHECK(ravel__link_unsent(client.link) > 0);
        end *leaves = k ? &client : &server, *stays = k ? &server : &client;
        ravel__hub_free(leaves->hub);
        leaves->hub = NULL;
        POLL_UNTIL(*stays, *leaves, stays->downs);
        CHECK_EQ(stays->downs, 1);
        close_ends(&server, &client);
        free(body);
    }
}

static void *await_in_a_thread(void *hub) {
    ravel__hub_await(hub);
    return NULL;
}

TEST(comm_link_that_is_lent_is_read_by_whom_it_was_lent_to) {
    for (int k = 0; k < 2; k++) {
        end server, client;
        ravel__message head = {3, 0, 8};
        uint8_t body[8];
        CHECK(connect_ends(&server, &client, k ? "127.0.0.1:0" : name_of("lent")));
        for (uint64_t id = 0; id < 20; id++) {
            head.id = id;
            for (int64_t i = 0; i < 8; i++) body[i] = byte_of(id, i);
            CHECK(ravel__link_lend(server.link));
            CHECK(!ravel__link_lend(server.link)); /* it is lent already */
            CHECK(!ravel__link_send(client.link, &head, body, NULL, NULL));
            (void)ravel__hub_poll(server.hub, 0.001, NULL, NULL);
            CHECK_EQ(server.messages, (int64_t)id); /* polls leave it alone */
            ravel__hub_await(server.hub);
            while (server.messages == (int64_t)id && ravel__hub_peek(server.hub) <= 0)
                (void)ravel__hub_poll(server.hub, 0.001, NULL, NULL);
            CHECK(server.messages == (int64_t)id + 1 && !server.wrong);
        }
        CHECK(ravel__link_lend(server.link)); /* nothing comes: the wait ends by itself */
        ravel__hub_await(server.hub);
        CHECK(ravel__link_lend(server.link) == 0);
        (void)ravel__hub_peek(server.hub);
        CHECK(ravel__link_lend(server.link));
        ravel__link_close(client.link, "done");
        ravel__hub_await(server.hub);
        (void)ravel__hub_peek(server.hub);
        CHECK_EQ(server.downs, 1);
        CHECK_HAS(server.why, "closed the link: done");
        close_ends(&server, &client);
    }
}

TEST(comm_link_that_is_lost_while_it_is_lent_stays_until_it_is_back) {
    end server, client;
    pthread_t thread;
    CHECK(connect_ends(&server, &client, "127.0.0.1:0"));
    ravel__link *link = server.link;
    CHECK(ravel__link_lend(link));
    CHECK(pthread_create(&thread, NULL, await_in_a_thread, server.hub) == 0);
    ravel__link_close(link, "lost");
    (void)ravel__hub_poll(server.hub, 0, NULL, NULL);
    CHECK(pthread_join(thread, NULL) == 0);
    (void)ravel__hub_poll(server.hub, 0, NULL, NULL);
    POLL_UNTIL(client, server, client.downs);
    CHECK_EQ(client.downs, 1);
    close_ends(&server, &client);
}

/* The user's token of these tests is in a folder of their own. */
static const char *private_cache(void) {
    static char folder[] = "/tmp/ravel-cache-XXXXXX";
    if (strstr(folder, "XXXXXX") && !mkdtemp(folder)) return NULL;
    (void)setenv("XDG_CACHE_HOME", folder, 1);
    return folder;
}

/* Whether two hubs of this process that were given no token come up over loopback. */
static int meets_without_a_token(void) {
    end server, client;
    ravel__link *link;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__hub_options s = options_for("127.0.0.1:0", NULL), c = options_for(NULL, NULL);
    if (!EXPECT(!open_end(&server, &s, &err) && !open_end(&client, &c, &err))) return 0;
    EXPECT(!ravel__hub_connect(client.hub, ravel__hub_address(server.hub), NULL, 0, 30, NULL, &link, &err));
    POLL_UNTIL(server, client, client.downs || client.ups);
    int up = client.ups;
    close_ends(&server, &client);
    return up;
}

TEST(comm_link_on_loopback_without_a_token_is_for_processes_of_one_user) {
    char path[200];
    struct stat st;
    const char *cache = private_cache();
    CHECK(cache);
    CHECK(meets_without_a_token());
    (void)snprintf(path, sizeof path, "%s/ravel/token", cache);
    CHECK(stat(path, &st) == 0 && (st.st_mode & 07777) == 0600 && st.st_size == 64);
    *strrchr(path, '/') = '\0';
    CHECK(stat(path, &st) == 0 && (st.st_mode & 07777) == 0700);
    CHECK(meets_without_a_token()); /* the token that is there */
    (void)setenv("XDG_CACHE_HOME", "/proc/nowhere", 1);
    CHECK(chmod(path, 0755) == 0);
    CHECK(meets_without_a_token()); /* in /tmp */
    (void)setenv("XDG_CACHE_HOME", cache, 1);
    end server;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__hub_options s = options_for("127.0.0.1:0", NULL);
    CHECK_OK(open_end(&server, &s, &err), &err);
    CHECK(server.hub->user_token);
    char token[RAVEL__TOKEN_MOST], shown[RAVEL__TOKEN_MOST] = "";
    (void)snprintf(shown, sizeof shown, "%s", server.hub->user_token);
    ravel__hub_free(server.hub);
    CHECK(chmod(path, 0700) == 0);
    CHECK_OK(ravel__token_user(token, &err), &err);
    CHECK(strcmp(token, shown) != 0); /* others could read its folder, so it was not used */
    (void)strcat(path, "/token");
    CHECK(chmod(path, 0644) == 0);
    CHECK_OK(ravel__token_user(token, &err), &err);
    CHECK_STR(token, shown);
    CHECK(unlink(path) == 0);
}

static void write_text(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static int holds_text(const char *path, const char *text) {
    char got[64] = "";
    FILE *f = fopen(path, "r");
    if (f) got[fread(got, 1, sizeof got - 1, f)] = '\0', (void)fclose(f);
    return strcmp(got, text) == 0;
}

TEST(comm_link_removes_sockets_and_nothing_else) {
    char folder[] = "/tmp/ravel-link-XXXXXX", path[64], address[80];
    end server, second;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/weights.bin", folder);
    (void)snprintf(address, sizeof address, "unix:%s", path);
    ravel__hub_options o = options_for(address, "t");
    write_text(path, "precious");
    CHECK_EQ(open_end(&server, &o, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, path);
    CHECK_HAS(err.message, "not a socket");
    CHECK(holds_text(path, "precious"));
    CHECK(unlink(path) == 0);
    ravel_error_clear(&err);
    CHECK_OK(open_end(&server, &o, &err), &err);
    CHECK_EQ(open_end(&second, &o, &err), RAVEL_E_IO); /* somebody listens there */
    CHECK(unlink(path) == 0);
    write_text(path, "another's");
    ravel__hub_free(server.hub); /* its socket is gone; what is there now is not its own */
    CHECK(holds_text(path, "another's"));
    CHECK(unlink(path) == 0 && rmdir(folder) == 0);
}

static int dial_from(const ravel__address *at, const char *host) {
    struct sockaddr_in own = {.sin_family = AF_INET};
    int fd = socket(at->at.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT(!host || (inet_pton(AF_INET, host, &own.sin_addr) == 1 && bind(fd, (void *)&own, sizeof own) == 0));
    EXPECT(fd >= 0 && connect(fd, (const struct sockaddr *)&at->at, at->bytes) == 0);
    return fd;
}

static int dial(const ravel__address *at) {
    return dial_from(at, NULL);
}

/* Strangers come faster than an honest peer can prove itself: while it takes one step, twice as many as there is room for, from
 * another host; or from its own, as many as half of it, which may close it, but not each time that it tries. */
static void churn(const char *host, int each) {
    enum { MOST = 8, KEPT = 64 };
    end server, client;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__link *link;
    ravel__address at;
    int fds[KEPT], dials = 0;
    uint8_t greeting[RAVEL__GREETING_BYTES];
    ravel__greeting g = {.role = RAVEL__ROLE_CONNECTS};
    ravel__greeting_write(&g, greeting);
    ravel__hub_options s = options_for("127.0.0.1:0", "t"), c = options_for(NULL, "t");
    s.max_strangers = MOST;
    CHECK_OK(open_end(&server, &s, &err), &err);
    CHECK_OK(open_end(&client, &c, &err), &err);
    const char *address = ravel__hub_address(server.hub);
    CHECK_OK(ravel__address_parse(address, strlen(address), &at, &err), &err);
    CHECK_OK(ravel__hub_connect(client.hub, address, NULL, 0, 60, NULL, &link, &err), &err);
    while (!client.ups && !client.downs) {
        (void)ravel__hub_poll(client.hub, 0, NULL, NULL);
        for (int i = 0; i < each; i++, dials++) {
            if (dials >= KEPT) (void)close(fds[dials % KEPT]);
            fds[dials % KEPT] = dial_from(&at, host);
            CHECK(send(fds[dials % KEPT], greeting, sizeof greeting, MSG_NOSIGNAL) == sizeof greeting);
            for (int k = 0; k < 2; k++) (void)ravel__hub_poll(server.hub, 0, NULL, NULL);
        }
    }
    CHECK(client.ups == 1);
    for (int i = 0; i < dials && i < KEPT; i++) (void)close(fds[i]);
    close_ends(&server, &client);
}

TEST(comm_link_lets_others_in_beside_strangers_that_come_and_go) {
    churn("127.0.0.2", 16);
    churn(NULL, 4);
}

/* Any number of connections that prove nothing, some of which begin to: few are held at a time, the oldest are closed and
 * told why, and who knows the token gets in beside them. */
TEST(comm_link_holds_few_strangers_and_lets_others_in) {
    enum { FLOOD = 400, MOST = 8 };
    end server, client;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__link *link;
    ravel__address at;
    int fds[FLOOD], told = 0;
    uint8_t greeting[RAVEL__GREETING_BYTES + RAVEL__HELLO_MOST];
    ravel__greeting g = {.role = RAVEL__ROLE_CONNECTS};
    ravel__hub_options s = options_for("127.0.0.1:0", "t"), c = options_for(NULL, "t");
    s.max_strangers = MOST, s.max_links = 2;
    ravel__greeting_write(&g, greeting);
    CHECK_OK(open_end(&server, &s, &err), &err);
    CHECK_OK(open_end(&client, &c, &err), &err);
    CHECK_OK(ravel__address_parse(ravel__hub_address(server.hub), strlen(ravel__hub_address(server.hub)), &at, &err),
             &err);
    for (int i = 0; i < FLOOD; i++) {
        fds[i] = dial(&at);
        CHECK(send(fds[i], greeting, i % 2 ? RAVEL__GREETING_BYTES : 50, MSG_NOSIGNAL) > 0);
        (void)ravel__hub_poll(server.hub, 0, NULL, NULL);
        int held = 0;
        for (const ravel__link *l = server.hub->links; l; l = l->next) held++;
        CHECK(held <= 2 * MOST + 1);
        if (i != FLOOD / 2) continue;
        CHECK_OK(ravel__hub_connect(client.hub, ravel__hub_address(server.hub), NULL, 0, 60, NULL, &link, &err), &err);
        POLL_UNTIL(server, client, client.ups);
        CHECK(client.ups == 1 && server.ups == 1);
    }
    for (int i = 0; i < FLOOD; i++) {
        uint8_t in[512];
        ravel__greeting answer = {0};
        ssize_t got = recv(fds[i], in, sizeof in, MSG_DONTWAIT);
        for (ssize_t from = 0; from + RAVEL__GREETING_BYTES <= got;
             from += RAVEL__GREETING_BYTES) { /* the server's own may be first */
            if (ravel__greeting_read(in + from, RAVEL__ROLE_ACCEPTS, &answer)) break;
            told += answer.role == RAVEL__ROLE_REFUSES && answer.most_body == 1;
        }
        (void)close(fds[i]);
    }
    CHECK(told >= FLOOD - 4 * MOST);
    CHECK(server.downs == 0 && client.downs == 0);
    for (int i = 0; i < 2; i++) { /* two are the limit */
        CHECK_OK(
            ravel__hub_connect(client.hub, ravel__hub_address(server.hub), NULL, 0, i ? 0.3 : 60, NULL, &link, &err),
            &err);
        POLL_UNTIL(server, client, client.downs || client.ups == 2 + i);
    }
    CHECK(client.ups == 2 && client.downs == 1);
    CHECK_HAS(client.why, "could not be reached within 0.3 s");
    CHECK_HAS(client.why, "it has as many links as it takes");
    close_ends(&server, &client);
}

TEST(comm_link_leaves_descriptors_for_files) {
    enum { FILES = 90 };
    end server;
    struct rlimit old, low;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__address at;
    ravel__hub_options s = options_for("127.0.0.1:0", "t");
    int fds[2 * FILES], others[FILES], count = 0, free_ones = 0;
    s.max_strangers = 1000;
    CHECK_OK(open_end(&server, &s, &err), &err);
    CHECK_OK(ravel__address_parse(ravel__hub_address(server.hub), strlen(ravel__hub_address(server.hub)), &at, &err),
             &err);
    CHECK(getrlimit(RLIMIT_NOFILE, &old) == 0);
    int highest = dup(0);
    (void)close(highest);
    low = old;
    low.rlim_cur = (rlim_t)highest + 2 * FILES;
    if (low.rlim_cur > old.rlim_max) check_skip("the limit of descriptors is too low");
    CHECK(setrlimit(RLIMIT_NOFILE, &low) == 0);
    while (count < FILES + FILES / 5 && (fds[count] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) >= 0) {
        (void)connect(fds[count++], (const struct sockaddr *)&at.at, at.bytes);
        (void)ravel__hub_poll(server.hub, 0.001, NULL, NULL);
    }
    while (free_ones < FILES && (others[free_ones] = dup(0)) >= 0) free_ones++;
    for (int i = 0; i < free_ones; i++) (void)close(others[i]);
    for (int i = 0; i < count; i++) (void)close(fds[i]);
    CHECK(setrlimit(RLIMIT_NOFILE, &old) == 0);
    CHECK(free_ones >= FILES / 4);
    ravel__hub_free(server.hub);
}

/* A peer that asks and does not read what it asked for: the server holds a limited queue and reads no more until it is
 * shorter; then all of it is answered. */
static void answer(void *user, ravel__link *link, const ravel__message *head, void *body) {
    static const char reply[3000];
    end *e = user;
    ravel__message back = {1, head->id, sizeof reply};
    on_message(user, link, head, body);
    e->wrong += ravel__link_send(link, &back, reply, NULL, NULL) != RAVEL_OK;
}

static void count_message(void *user, ravel__link *link, const ravel__message *head, void *body) {
    (void)link, (void)head;
    ((end *)user)->messages++;
    give_room_back(user, body);
}

TEST(comm_link_reads_no_more_of_a_peer_that_does_not_read) {
    enum { LIMIT = 100000, ASKS = 20000 };
    const char *const listens[] = {"127.0.0.1:0", name_of("unread")};
    for (int k = 0; k < 2; k++) {
        end server = {0}, client = {0};
        ravel_error err = RAVEL_ERROR_INIT;
        ravel__link *link;
        int64_t longest = 0, asked = 0;
        ravel__hub_options s = options_for(listens[k], "t"), c = options_for(NULL, "t");
        const ravel__hub_handler hs = {&server, on_up, on_place, answer, NULL, on_down};
        const ravel__hub_handler hc = {&client, on_up, on_place, count_message, NULL, on_down};
        s.max_unsent = LIMIT;
        CHECK_OK(ravel__hub_open(&s, &hs, &server.hub, &err), &err);
        CHECK_OK(ravel__hub_open(&c, &hc, &client.hub, &err), &err);
        CHECK_OK(ravel__hub_connect(client.hub, ravel__hub_address(server.hub), NULL, 0, 60, NULL, &link, &err), &err);
        POLL_UNTIL(server, client, client.ups && server.ups);
        while (asked < ASKS) {
            ravel__message head = {9, (uint64_t)asked++, 0};
            CHECK_OK(ravel__link_send(client.link, &head, NULL, NULL, &err), &err);
            if (asked % 50 == 0) (void)ravel__hub_poll(server.hub, 0, NULL, NULL); /* the client does not poll */
            if (ravel__link_unsent(server.link) > longest) longest = ravel__link_unsent(server.link);
        }
        for (int i = 0; i < 100; i++) (void)ravel__hub_poll(server.hub, 0.001, NULL, NULL);
        if (ravel__link_unsent(server.link) > longest) longest = ravel__link_unsent(server.link);
        CHECK(longest > 0 && longest <= LIMIT + 3000);
        CHECK(server.messages < ASKS);
        POLL_UNTIL(server, client, client.messages == ASKS || client.downs);
        CHECK_EQ(client.messages, ASKS);
        CHECK(server.wrong == 0 && server.downs == 0);
        /* One that goes while it has much to read is noticed. */
        for (int i = 0; i < 2000; i++) {
            ravel__message head = {9, (uint64_t)asked++, 0};
            (void)ravel__link_send(client.link, &head, NULL, NULL, NULL);
        }
        for (int i = 0; i < 20; i++) (void)ravel__hub_poll(server.hub, 0.001, NULL, NULL);
        ravel__hub_free(client.hub);
        client.hub = NULL;
        POLL_UNTIL(server, client, server.downs);
        CHECK_EQ(server.downs, 1);
        close_ends(&server, &client);
    }
}

TEST(comm_link_refuses_other_tokens_other_networks_and_public_addresses_without_a_token) {
    static const struct {
        const char *server, *client, *allow, *listen, *why;
    } cases[] = {{"right", "wrong", NULL, "127.0.0.1:0", "the tokens differ"},
                 {"right", "", NULL, "127.0.0.1:0", "it needs a token; give this side the same (RAVEL_TOKEN)"},
                 {"", "right", NULL, "127.0.0.1:0", "it was given no token, and this side was"},
                 {"none", "right", NULL, "127.0.0.1:0", "it takes peers without a token, and this side has one"},
                 {"none", "", NULL, "127.0.0.1:0", "set RAVEL_TOKEN=none here too"},
                 {"", "none", NULL, "127.0.0.1:0", "leave out RAVEL_TOKEN=none, or set it on both sides"},
                 {"right", "right", "10.0.0.0/8", "127.0.0.1:0", "not in a network that it allows"},
                 {"right", "wrong", NULL, NULL, "the tokens differ"}}; /* an address of 90 letters: still whole */
    private_cache();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        end server, client;
        ravel__link *link;
        ravel_error err = RAVEL_ERROR_INIT;
        const char *listen = cases[i].listen ? cases[i].listen : name_of(LONG_NAME);
        ravel__hub_options s = options_for(listen, cases[i].server), c = options_for(NULL, cases[i].client);
        s.allow = cases[i].allow;
        CHECK_OK(open_end(&server, &s, &err), &err);
        CHECK_OK(open_end(&client, &c, &err), &err);
        CHECK_OK(ravel__hub_connect(client.hub, ravel__hub_address(server.hub), NULL, 0, 0.5, NULL, &link, &err), &err);
        POLL_UNTIL(server, client, client.downs);
        CHECK(client.downs == 1 && client.ups == 0 && server.ups == 0 && server.downs == 0);
        CHECK_HAS(client.why, "refused the link in the handshake: ");
        CHECK_HAS(client.why, cases[i].why);
        close_ends(&server, &client);
    }
    end server;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__hub_options s = options_for("0.0.0.0:0", NULL);
    CHECK_EQ(open_end(&server, &s, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "needs a shared token");
}

TEST(comm_link_waits_for_a_listener_and_gives_up_in_time) {
    end server, client, late;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__link *link;
    char own[32], address[200]; /* the port is listened at twice: at an address where nobody else asks for one */
    (void)snprintf(own, sizeof own, "127.77.%d.%d:0", (int)getpid() / 250 % 250 + 1, (int)getpid() % 250 + 1);
    ravel__hub_options s = options_for(own, "t"), c = options_for(NULL, "t");
    CHECK_OK(open_end(&server, &s, &err), &err);
    (void)snprintf(address, sizeof address, "unix:@nobody-listens-here,%s", ravel__hub_address(server.hub));
    ravel__hub_free(server.hub);
    CHECK_OK(open_end(&client, &c, &err), &err);
    CHECK_OK(ravel__hub_connect(client.hub, address, NULL, 0, 60, NULL, &link, &err), &err);
    for (int i = 0; i < 20; i++) (void)ravel__hub_poll(client.hub, 0.005, NULL, NULL);
    CHECK(client.ups == 0 && client.downs == 0);
    s.listen = strchr(address, ',') + 1;
    CHECK_OK(open_end(&late, &s, &err), &err);
    POLL_UNTIL(late, client, client.ups);
    CHECK_EQ(client.ups, 1);
    CHECK_STR(client.link->trouble, ""); /* the refused attempts do not explain a later loss */
    close_ends(&late, &client);
    CHECK_OK(open_end(&client, &c, &err), &err);
    CHECK_OK(ravel__hub_connect(client.hub, address, NULL, 0, 0.1, NULL, &link, &err), &err);
    end none = {0};
    POLL_UNTIL(client, none, client.downs);
    CHECK_EQ(client.downs, 1);
    CHECK_HAS(client.why, "could not be reached within 0.1 s");
    ravel__hub_free(client.hub);
}

TEST(comm_link_serves_many_links_in_one_thread) {
    enum { LINKS = 200 };
    end server, client;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__link *links[LINKS];
    ravel__hub_options s = options_for(name_of("many"), "t"), c = options_for(NULL, "t");
    CHECK_OK(open_end(&server, &s, &err), &err);
    CHECK_OK(open_end(&client, &c, &err), &err);
    for (int i = 0; i < LINKS; i++)
        CHECK_OK(ravel__hub_connect(client.hub, ravel__hub_address(server.hub), NULL, 0, 60, NULL, &links[i], &err),
                 &err);
    POLL_UNTIL(server, client, client.ups == LINKS && server.ups == LINKS);
    CHECK_EQ(server.ups, LINKS);
    server.next_id = 5;
    for (int i = 0; i < LINKS; i++) {
        ravel__message head = {9, 5 + (uint64_t)i, 3};
        CHECK_OK(ravel__link_send(links[i], &head, "abc", NULL, &err), &err);
    }
    POLL_UNTIL(server, client, server.messages == LINKS);
    CHECK_EQ(server.messages, LINKS);
    close_ends(&server, &client);
}

/* Whether heartbeats kept the link up for twice the silence that ends it; a peer that then falls silent is lost. */
static int heartbeats_keep_it_up(void) {
    end server, client;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__link *link;
    ravel__hub_options s = options_for("127.0.0.1:0", "t"), c = options_for(NULL, "t");
    s.silence = 1.5, s.heartbeat = 0.1; /* one thread polls both ends: it may be kept waiting for a while */
    c.heartbeat = 0.1;
    if (!EXPECT(!open_end(&server, &s, &err) && !open_end(&client, &c, &err))) return 0;
    EXPECT(!ravel__hub_connect(client.hub, ravel__hub_address(server.hub), NULL, 0, 60, NULL, &link, &err));
    POLL_UNTIL(server, client, client.ups);
    int64_t until = ravel__clock_ns() + 3000000000;
    POLL_UNTIL(server, client, ravel__clock_ns() > until || server.downs);
    int kept = server.downs == 0 && client.downs == 0;
    end none = {0};
    POLL_UNTIL(server, none, server.downs);
    EXPECT(strstr(server.why, "has been silent for 1.5 s") != NULL);
    close_ends(&server, &client);
    return kept;
}

TEST(comm_link_with_a_silent_peer_is_lost_only_where_asked) {
    int kept = 0; /* on a machine that stops this thread for 1.5 s, once more */
    for (int i = 0; i < 8 && !kept; i++) kept = heartbeats_keep_it_up();
    CHECK(kept);
}

TEST(comm_link_takes_no_longer_body_than_it_said) {
    end server, client;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__link *link;
    ravel__hub_options s = options_for("127.0.0.1:0", "t"), c = options_for(NULL, "t");
    s.max_body = 100;
    CHECK_OK(open_end(&server, &s, &err), &err);
    CHECK_OK(open_end(&client, &c, &err), &err);
    CHECK_OK(ravel__hub_connect(client.hub, ravel__hub_address(server.hub), NULL, 0, 60, NULL, &link, &err), &err);
    POLL_UNTIL(server, client, client.ups && server.ups);
    char body[101] = {0};
    ravel__message head = {9, 0, 101};
    CHECK_EQ(ravel__link_send(client.link, &head, body, NULL, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "at most 100 bytes");
    head.bytes = 100;
    CHECK(ravel__link_send(client.link, &head, body, NULL, NULL) == RAVEL_OK);
    POLL_UNTIL(server, client, server.messages);
    CHECK_EQ(server.messages, 1);
    close_ends(&server, &client);
}

/* ---- bytes of strangers --------------------------------------------------------------------------------- */

/* Random bytes, or the beginning of a good greeting with something changed, into a listening hub: it serves others
 * afterwards. */
TEST(comm_link_survives_strangers) {
    end server, client;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__rng rng = ravel__rng_seed(check_seed());
    CHECK(connect_ends(&server, &client, "127.0.0.1:0"));
    const char *text = ravel__hub_address(server.hub);
    ravel__address at;
    CHECK_OK(ravel__address_parse(text, strlen(text), &at, &err), &err);
    for (int64_t i = 0; i < check_rounds(60, 1000); i++) {
        uint8_t bytes[2000];
        size_t count = ravel__rng_below(&rng, sizeof bytes);
        ravel__greeting g = {.role = RAVEL__ROLE_CONNECTS, .hello_bytes = (uint32_t)ravel__rng_below(&rng, 64)};
        for (size_t k = 0; k < sizeof bytes; k++) bytes[k] = (uint8_t)ravel__rng_next(&rng);
        if (i % 2) ravel__greeting_write(&g, bytes);
        if (i % 4 == 1) bytes[ravel__rng_below(&rng, RAVEL__GREETING_BYTES)] ^= 1;
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&at.at, at.bytes) == 0);
        CHECK(send(fd, bytes, count, MSG_NOSIGNAL) == (ssize_t)count || count == 0);
        for (int k = 0; k < 3; k++) (void)ravel__hub_poll(server.hub, 0, NULL, NULL);
        (void)close(fd);
        (void)ravel__hub_poll(server.hub, 0, NULL, NULL);
    }
    CHECK(server.ups == 1 && server.downs == 0);
    send_some(&client, &rng, 0);
    POLL_UNTIL(server, client, server.messages);
    CHECK(server.messages == 1 && !server.wrong);
    close_ends(&server, &client);
}

/* ---- faults on the way ---------------------------------------------------------------------------------- */

/* A relay between client and server that does harm at a random byte. */
typedef enum harm { NONE, CUT, STALL, GARBAGE, DUPLICATE, LOSE, SWAP, HALF_OPEN, HARMS } harm;

/* What a connection before sent, from its first byte on: SWAP puts it into another one, at the same place. */
static uint8_t other[1 << 18];
static int64_t other_bytes;

typedef struct relay {
    int listener, in, out; /* in: from the client; out: to the server */
    harm how;
    int64_t at, moved; /* harm is done when so many bytes have gone to the server */
    int stalled;
    ravel__address to;
} relay;

static int relay_open(relay *r, const char *server, harm how, int64_t at) {
    ravel__address any = {0};
    *r = (relay){-1, -1, -1, how, at, 0, 0, {{0}, 0}};
    if (ravel__address_parse(server, strlen(server), &r->to, NULL)) return 0;
    (void)ravel__address_parse("127.0.0.1:0", 11, &any, NULL);
    r->listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (how == NONE) other_bytes = 0;
    return bind(r->listener, (struct sockaddr *)&any.at, any.bytes) == 0 && listen(r->listener, 4) == 0;
}

static void relay_close(relay *r) {
    if (r->in >= 0) (void)close(r->in);
    if (r->out >= 0) (void)close(r->out);
    r->in = r->out = -1;
}

static const char *relay_address(const relay *r, char text[RAVEL__ADDRESS_TEXT]) {
    ravel__address at = {.bytes = sizeof at.at};
    (void)getsockname(r->listener, (struct sockaddr *)&at.at, &at.bytes);
    return ravel__address_format(&at, text);
}

/* The bytes that go on instead of buffer[bytes], where harm is due in them. */
static ssize_t do_harm(relay *r, uint8_t *buffer, ssize_t bytes, uint8_t *extra, ssize_t *extra_bytes) {
    int64_t spot = r->at - r->moved;
    *extra_bytes = 0;
    if (r->how == NONE || spot < 0 || spot >= bytes) return bytes;
    if (r->how == STALL || r->how == HALF_OPEN) r->stalled = 1;
    if (r->how == CUT) relay_close(r);
    if (r->how == GARBAGE) buffer[spot] ^= 0x10;
    if (r->how == DUPLICATE) memcpy(extra, buffer, (size_t)bytes), *extra_bytes = bytes;
    if (r->how == LOSE) return spot;
    if (r->how == SWAP && r->at < other_bytes) {
        int64_t most = other_bytes - r->at < bytes - spot ? other_bytes - r->at : bytes - spot;
        memcpy(buffer + spot, other + r->at, (size_t)most);
    }
    return r->how == CUT || r->stalled ? spot : bytes;
}

static void relay_one(relay *r, int from, int to, int harms) {
    uint8_t buffer[8192], extra[8192];
    ssize_t extra_bytes = 0, got = recv(from, buffer, sizeof buffer, MSG_DONTWAIT);
    if (got == 0) {
        relay_close(r);
        return;
    }
    if (got < 0) return;
    ssize_t bytes = harms ? do_harm(r, buffer, got, extra, &extra_bytes) : got;
    if (harms && r->how == NONE && r->moved + got <= (int64_t)sizeof other) {
        memcpy(other + r->moved, buffer, (size_t)got);
        other_bytes = r->moved + got;
    }
    if (harms) r->moved += got;
    if (r->out < 0) return;
    for (ssize_t sent = 0; sent < bytes;) {
        ssize_t n = send(to, buffer + sent, (size_t)(bytes - sent), MSG_NOSIGNAL);
        if (n <= 0) return;
        sent += n;
    }
    if (extra_bytes) (void)!send(to, extra, (size_t)extra_bytes, MSG_NOSIGNAL);
}

static void relay_poll(relay *r) {
    int in = accept(r->listener, NULL, NULL);
    if (in >= 0 && r->in < 0) {
        r->in = in;
        r->out = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(r->out, (struct sockaddr *)&r->to.at, r->to.bytes) != 0) relay_close(r);
    } else if (in >= 0) {
        (void)close(in);
    }
    for (int i = 0; i < 8 && r->in >= 0 && !r->stalled; i++) {
        relay_one(r, r->in, r->out, 1);
        if (r->in >= 0 && r->how != HALF_OPEN) relay_one(r, r->out, r->in, 0);
    }
}

/* Whether this build has the module. */
static int has_tls(void) {
    ravel__hub *hub = NULL;
    const ravel__hub_handler none = {0};
    ravel__hub_options o = options_for(NULL, "t");
    o.tls = 1;
    int has = ravel__hub_open(&o, &none, &hub, NULL) == RAVEL_OK;
    ravel__hub_free(hub);
    return has;
}

/* Whatever the relay does: every message that arrives is right and in order, and both ends come to an end. */
static void one_fault(ravel__rng *rng, harm how, int tls) {
    end server, client;
    relay r;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__link *link;
    char address[RAVEL__ADDRESS_TEXT];
    ravel__hub_options s = options_for("127.0.0.1:0", "t"), c = options_for(NULL, "t");
    double patience = how == NONE ? 30 : 0.4; /* a busy machine must not harm what nothing else does */
    s.tls = c.tls = tls;
    s.silence = c.silence = patience, s.heartbeat = c.heartbeat = 0.1, s.handshake = patience, c.once = 1;
    CHECK_OK(open_end(&server, &s, &err), &err);
    CHECK_OK(open_end(&client, &c, &err), &err);
    int64_t at = (int64_t)ravel__rng_below(rng, ravel__rng_below(rng, 2) ? 400 : 200000);
    CHECK(relay_open(&r, ravel__hub_address(server.hub), how, at));
    CHECK_OK(ravel__hub_connect(client.hub, relay_address(&r, address), NULL, 0, 1.5 * patience, NULL, &link, &err),
             &err);
    int64_t stop = ravel__clock_ns() + 60000000000;
    uint64_t sent = 0;
    while (!client.downs && server.messages < 12 && ravel__clock_ns() < stop) {
        relay_poll(&r);
        (void)ravel__hub_poll(client.hub, 0.0005, NULL, NULL);
        (void)ravel__hub_poll(server.hub, 0.0005, NULL, NULL);
        if (client.link && sent < 12 && ravel__link_unsent(client.link) < 100000) {
            uint8_t body[30000];
            ravel__message head = {1, sent, (int64_t)ravel__rng_below(rng, sizeof body)};
            for (int64_t i = 0; i < head.bytes; i++) body[i] = byte_of(sent, i);
            if (!ravel__link_send(client.link, &head, body, NULL, NULL)) sent++;
        }
    }
    CHECK(ravel__clock_ns() < stop);
    CHECK_EQ(server.wrong, 0);
    CHECK(how != NONE || server.messages == 12);
    close_ends(&server, &client);
    relay_close(&r);
    (void)close(r.listener);
}

TEST(comm_link_gives_no_wrong_byte_and_no_hang_whatever_happens_on_the_way) {
    ravel__rng rng = ravel__rng_seed(check_seed());
    for (int64_t i = 0; i < check_rounds(48, 1000); i++) {
        int tls = has_tls() && i / (HARMS - 1) % 2;
        if (i % 20 == 0) one_fault(&rng, NONE, has_tls() && i % 40 == 0);
        one_fault(&rng, (harm)(1 + i % (HARMS - 1)), tls);
    }
}

/* ---- somebody in between ---------------------------------------------------------------------------------- */

/* He reads and writes all bytes and knows the protocol, but not the token: he takes the client's frames apart and does something
 * to frame number DUE. */
typedef enum trick {
    HONEST,
    FLIP_HEAD,
    FLIP_BODY,
    FLIP_TAG,
    REPLAY,
    DROP,
    REORDER,
    HALVE,
    END_EARLY,
    SPLICE,
    REFLECT,
    RELABEL,
    TRICKS
} trick;
enum { DUE = 5, FRAMES = 9, FRAME_BODY = 700, FRAME_ALL = RAVEL__HEAD_BYTES + FRAME_BODY + RAVEL__SUM_BYTES };

typedef struct middle {
    relay sockets;
    trick how;
    uint8_t stream[RAVEL__GREETING_BYTES + 64 + (FRAMES + 1) * FRAME_ALL], earlier[FRAME_ALL], back[FRAME_ALL];
    size_t bytes, handshake, sent; /* of `stream`; before the first frame; frames that went on */
    size_t returned;               /* bytes of the server's first frame, after its greeting and proof */
    int64_t skipped;
} middle;

static void middle_send(middle *m, const uint8_t *bytes, size_t count) {
    if (m->sockets.out >= 0) (void)!send(m->sockets.out, bytes, count, MSG_NOSIGNAL);
}

static void middle_end(middle *m) {
    if (m->sockets.out >= 0) (void)shutdown(m->sockets.out, SHUT_WR);
}

static void middle_trick(middle *m, uint8_t *frame) {
    ravel__mac_key guessed;
    uint8_t copy[2 * FRAME_ALL];
    memcpy(copy, frame, m->how == REORDER ? 2 * FRAME_ALL : FRAME_ALL);
    if (m->how == FLIP_HEAD) copy[16] ^= 1;
    if (m->how == FLIP_BODY) copy[RAVEL__HEAD_BYTES + 300] ^= 1;
    if (m->how == FLIP_TAG) copy[FRAME_ALL - 1] ^= 1;
    if (m->how == SPLICE) memcpy(copy, m->earlier, FRAME_ALL);
    if (m->how == REFLECT) memcpy(copy, m->back, FRAME_ALL);
    if (m->how == RELABEL) { /* a head of his own, with the right number and a key from what is on the wire */
        ravel__link_head f = {RAVEL__FRAME_MESSAGE, 1, DUE, 99, FRAME_BODY};
        ravel__mac_key_make(&guessed, m->stream + 32);
        ravel__link_head_write(&f, &guessed, copy);
    }
    if (m->how == REORDER) {
        middle_send(m, copy + FRAME_ALL, FRAME_ALL);
        m->sent++;
    }
    if (m->how != DROP && m->how != END_EARLY) middle_send(m, copy, m->how == HALVE ? FRAME_ALL / 2 : FRAME_ALL);
    if (m->how == REPLAY) middle_send(m, copy, FRAME_ALL);
    if (m->how == HALVE || m->how == END_EARLY) middle_end(m);
}

static void middle_pass(middle *m) {
    while (m->bytes >= m->handshake + (m->sent + 1) * FRAME_ALL) {
        uint8_t *frame = m->stream + m->handshake + m->sent * FRAME_ALL;
        int two = m->bytes >= m->handshake + (m->sent + 2) * FRAME_ALL;
        if (m->sent == DUE && m->how == REORDER && !two) return;
        if (m->sent == DUE && m->how == HONEST) memcpy(m->earlier, frame, FRAME_ALL);
        if (m->sent == DUE && m->how == REFLECT && m->returned < FRAME_ALL) return;
        if (m->sent == DUE)
            middle_trick(m, frame);
        else
            middle_send(m, frame, FRAME_ALL);
        m->sent++;
    }
}

static void middle_poll(middle *m) {
    relay *r = &m->sockets;
    uint8_t in[4096];
    int fd = accept(r->listener, NULL, NULL);
    if (fd >= 0) {
        r->in = fd, r->out = dial(&r->to);
        m->bytes = m->sent = m->returned = 0, m->skipped = 0;
    }
    if (r->in < 0) return;
    size_t before = m->bytes;
    ssize_t got = recv(r->in, m->stream + m->bytes, sizeof m->stream - m->bytes, MSG_DONTWAIT);
    if (got > 0) m->bytes += (size_t)got;
    if (before < m->handshake)
        middle_send(m, m->stream + before, (m->bytes < m->handshake ? m->bytes : m->handshake) - before);
    middle_pass(m);
    got = recv(r->out, in, sizeof in, MSG_DONTWAIT);
    if (got > 0) (void)!send(r->in, in, (size_t)got, MSG_NOSIGNAL);
    int64_t first = RAVEL__GREETING_BYTES + RAVEL__SHA256_BYTES - m->skipped; /* of the server's frame in `in` */
    for (ssize_t i = first > 0 ? first : 0; i < got && m->returned < FRAME_ALL; i++) m->back[m->returned++] = in[i];
    if (got > 0) m->skipped += got;
}

static void send_frame(end *e, uint64_t id) {
    uint8_t body[FRAME_BODY];
    ravel__message head = {1, id, FRAME_BODY};
    for (int64_t i = 0; i < FRAME_BODY; i++) body[i] = byte_of(id, i);
    CHECK(!ravel__link_send(e->link, &head, body, NULL, NULL));
}

TEST(comm_link_ends_with_the_reason_whatever_somebody_in_between_does) {
    static const char *const reasons[TRICKS] = {[FLIP_HEAD] = "a frame that was changed on the way",
                                                [FLIP_BODY] = "a body that was changed on the way",
                                                [FLIP_TAG] = "a body that was changed on the way",
                                                [REPLAY] = "it was repeated on the way",
                                                [DROP] = "one was lost or moved on the way",
                                                [REORDER] = "one was lost or moved on the way",
                                                [HALVE] = "closed the connection",
                                                [END_EARLY] = "closed the connection",
                                                [SPLICE] = "a frame that was changed on the way",
                                                [REFLECT] = "a frame that was changed on the way",
                                                [RELABEL] = "a frame that was changed on the way"};
    middle m = {.handshake = RAVEL__GREETING_BYTES + 6 + RAVEL__SHA256_BYTES};
    for (int t = 0; t < TRICKS; t++) {
        end server, client;
        ravel_error err = RAVEL_ERROR_INIT;
        ravel__link *link;
        char address[RAVEL__ADDRESS_TEXT];
        ravel__hub_options s = options_for("127.0.0.1:0", "t"), c = options_for(NULL, "t");
        m.how = (trick)t;
        s.heartbeat = c.heartbeat = 0;
        CHECK_OK(open_end(&server, &s, &err), &err);
        CHECK_OK(open_end(&client, &c, &err), &err);
        CHECK(relay_open(&m.sockets, ravel__hub_address(server.hub), CUT, 0));
        CHECK_OK(ravel__hub_connect(client.hub, relay_address(&m.sockets, address), "client", 6, 60, NULL, &link, &err),
                 &err);
        for (int64_t end_ns = ravel__clock_ns() + 60000000000;
             ravel__clock_ns() < end_ns && !(server.ups && client.ups);) {
            middle_poll(&m);
            (void)ravel__hub_poll(client.hub, 0.0005, NULL, NULL);
            (void)ravel__hub_poll(server.hub, 0.0005, NULL, NULL);
        }
        CHECK(server.ups == 1 && client.ups == 1);
        for (uint64_t id = 0; id < FRAMES; id++) send_frame(&client, id);
        send_frame(&server, 0);
        int64_t most = t == HONEST ? FRAMES : DUE + (t == REPLAY);
        for (int64_t end_ns = ravel__clock_ns() + 60000000000;
             ravel__clock_ns() < end_ns && !server.downs && !(t == HONEST && server.messages == FRAMES);) {
            middle_poll(&m);
            (void)ravel__hub_poll(client.hub, 0.0005, NULL, NULL);
            (void)ravel__hub_poll(server.hub, 0.0005, NULL, NULL);
        }
        CHECK_EQ(server.messages, most);
        CHECK_EQ(server.wrong, 0);
        CHECK_EQ(server.downs, t != HONEST);
        if (t != HONEST) CHECK_HAS(server.why, reasons[t]);
        if (t == HONEST) CHECK(m.bytes == m.handshake + FRAMES * (size_t)FRAME_ALL); /* the sizes above are right */
        close_ends(&server, &client);
        relay_close(&m.sockets);
        (void)close(m.sockets.listener);
    }
}

/* ---- TLS -------------------------------------------------------------------------------------------------- */

/* Client and server with these options; 1: both came up, 0: the client gave up. */
static int meets(end *server, end *client, const ravel__hub_options *s, const ravel__hub_options *c) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__link *link;
    if (!EXPECT(!open_end(server, s, &err) && !open_end(client, c, &err))) return 0;
    EXPECT(!ravel__hub_connect(client->hub, ravel__hub_address(server->hub), NULL, 0, 60, NULL, &link, &err));
    POLL_UNTIL(*server, *client, client->downs || (client->ups && server->ups));
    return client->ups && server->ups && !client->downs;
}

TEST(comm_link_over_tls_carries_the_same) {
    enum { COUNT = 60 };
    ravel__rng rng = ravel__rng_seed(check_seed());
    if (!has_tls()) check_skip("no TLS module: libssl-dev is not installed");
    static const char *const tokens[] = {"secret", NULL, "none"};
    private_cache();
    for (int k = 0; k < 3; k++) {
        end server, client;
        ravel__hub_options s = options_for("127.0.0.1:0", tokens[k]), c = options_for(NULL, tokens[k]);
        s.tls = c.tls = 1;
        CHECK(meets(&server, &client, &s, &c));
        for (uint64_t i = 0; i < COUNT; i++) {
            send_some(&client, &rng, i);
            send_some(&server, &rng, i);
            (void)ravel__hub_poll(server.hub, 0, NULL, NULL);
            (void)ravel__hub_poll(client.hub, 0, NULL, NULL);
        }
        POLL_UNTIL(server, client,
                   (server.messages == COUNT && client.messages == COUNT && server.sent == COUNT) || server.downs);
        CHECK(server.messages == COUNT && client.messages == COUNT && !server.wrong && !client.wrong);
        CHECK_EQ(ravel__link_lend(server.link), 0);
        ravel__link_close(client.link, "no more work");
        POLL_UNTIL(server, client, server.downs);
        CHECK_HAS(server.why, "closed the link: no more work");
        close_ends(&server, &client);
    }
}

TEST(comm_link_over_tls_needs_it_on_both_sides_and_the_same_token) {
    static const struct {
        int server, client;
        const char *token, *why;
    } cases[] = {{1, 0, "right", "it speaks TLS only; ask for it on both sides"},
                 {0, 1, "right", "it does not use TLS, and this side does"},
                 {1, 1, "wrong", "are the tokens the same"}};
    if (!has_tls()) check_skip("no TLS module: libssl-dev is not installed");
    for (int i = 0; i < 3; i++) {
        end server, client;
        ravel__hub_options s = options_for("127.0.0.1:0", "right"), c = options_for(NULL, cases[i].token);
        s.tls = cases[i].server, c.tls = cases[i].client;
        CHECK(!meets(&server, &client, &s, &c));
        CHECK_HAS(client.why, cases[i].why);
        CHECK_EQ(server.ups, 0);
        close_ends(&server, &client);
    }
    ravel_error err = RAVEL_ERROR_INIT;
    end server;
    ravel__hub_options o = options_for("127.0.0.1:0", "t");
    (void)setenv("RAVEL_TLS", "yes", 1);
    CHECK_EQ(open_end(&server, &o, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "must be 0 or 1");
    ravel_error_clear(&err);
    (void)setenv("RAVEL_TLS", "1", 1);
    (void)setenv("RAVEL_TLS_CERT", "/nowhere.pem", 1);
    CHECK_EQ(open_end(&server, &o, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "needs all three");
    ravel_error_clear(&err);
    (void)setenv("RAVEL_TLS_KEY", "/nowhere.key", 1), (void)setenv("RAVEL_TLS_CA", "/nowhere.ca", 1);
    CHECK_EQ(open_end(&server, &o, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "/nowhere.pem");
    (void)unsetenv("RAVEL_TLS"), (void)unsetenv("RAVEL_TLS_CERT"), (void)unsetenv("RAVEL_TLS_KEY"),
        (void)unsetenv("RAVEL_TLS_CA");
}

/* Two authorities, and a certificate of each, made by the openssl command. */
static int make_certificates(const char *folder) {
    char command[1200];
    (void)snprintf(
        command, sizeof command,
        "cd %s && for n in a b; do openssl req -x509 -newkey ed25519 -nodes -keyout ca-$n.key -out ca-$n.pem -subj /CN=ca-$n"
        " -days 2 && openssl req -newkey ed25519 -nodes -keyout $n.key -out $n.csr -subj /CN=$n && openssl x509 -req -in $n.csr"
        " -CA ca-$n.pem -CAkey ca-$n.key -CAcreateserial -out $n.pem -days 2; done >log 2>&1",
        folder);
    return system(command) == 0;
}

static void use_certificates(const char *folder, char own, char trusted) {
    char text[100];
    (void)snprintf(text, sizeof text, "%s/%c.pem", folder, own), (void)setenv("RAVEL_TLS_CERT", text, 1);
    (void)snprintf(text, sizeof text, "%s/%c.key", folder, own), (void)setenv("RAVEL_TLS_KEY", text, 1);
    (void)snprintf(text, sizeof text, "%s/ca-%c.pem", folder, trusted), (void)setenv("RAVEL_TLS_CA", text, 1);
}

TEST(comm_link_over_tls_with_certificates_takes_those_it_trusts) {
    char folder[] = "/tmp/ravel-certs-XXXXXX", command[64];
    static const char *const cases[] = {"aa", "ba", "bb",
                                        "ab"}; /* the client's own and what it trusts; the server's is a, of a */
    if (!has_tls()) check_skip("no TLS module: libssl-dev is not installed");
    CHECK(mkdtemp(folder));
    if (!make_certificates(folder)) check_skip("no openssl command to make certificates");
    for (int i = 0; i < 4; i++) {
        end server, client;
        ravel_error err = RAVEL_ERROR_INIT;
        ravel__link *link;
        ravel__hub_options s = options_for("127.0.0.1:0", "t"), c = options_for(NULL, "t");
        s.tls = c.tls = 1;
        use_certificates(folder, 'a', 'a');
        CHECK_OK(open_end(&server, &s, &err), &err);
        use_certificates(folder, cases[i][0], cases[i][1]);
        CHECK_OK(open_end(&client, &c, &err), &err);
        CHECK_OK(ravel__hub_connect(client.hub, ravel__hub_address(server.hub), NULL, 0, 60, NULL, &link, &err), &err);
        POLL_UNTIL(server, client, client.downs || (client.ups && server.ups));
        CHECK_EQ(client.ups && server.ups, i == 0);
        if (i > 0) CHECK_HAS(client.why, "TLS");
        close_ends(&server, &client);
    }
    (void)unsetenv("RAVEL_TLS_CERT"), (void)unsetenv("RAVEL_TLS_KEY"), (void)unsetenv("RAVEL_TLS_CA");
    (void)snprintf(command, sizeof command, "rm -rf %s", folder);
    CHECK(system(command) == 0);
}

/* What passes a relay: the body is there in plain without TLS, and not with it; a bit changed is noticed by TLS itself. */
TEST(comm_link_over_tls_shows_nothing_on_the_wire) {
    static const char words[] = "the weights of a model that nobody else may read";
    if (!has_tls()) check_skip("no TLS module: libssl-dev is not installed");
    for (int k = 0; k < 3; k++) {
        end server, client;
        relay r;
        ravel_error err = RAVEL_ERROR_INIT;
        ravel__link *link;
        char address[RAVEL__ADDRESS_TEXT];
        ravel__hub_options s = options_for("127.0.0.1:0", "t"), c = options_for(NULL, "t");
        s.tls = c.tls = k > 0;
        CHECK_OK(open_end(&server, &s, &err), &err);
        CHECK_OK(open_end(&client, &c, &err), &err);
        CHECK(relay_open(&r, ravel__hub_address(server.hub), NONE, 0));
        CHECK_OK(ravel__hub_connect(client.hub, relay_address(&r, address), NULL, 0, 60, NULL, &link, &err), &err);
        int sent = 0;
        for (int64_t stop = ravel__clock_ns() + 60000000000;
             ravel__clock_ns() < stop && !server.messages && !server.downs;) {
            relay_poll(&r);
            (void)ravel__hub_poll(client.hub, 0.0005, NULL, NULL);
            (void)ravel__hub_poll(server.hub, 0.0005, NULL, NULL);
            if (!client.ups || !server.ups || sent) continue;
            ravel__message head = {9, 0, sizeof words};
            if (k == 2) r.how = GARBAGE, r.at = r.moved + 20;
            CHECK(!ravel__link_send(client.link, &head, words, NULL, NULL));
            sent = 1;
        }
        CHECK_EQ(server.messages, k < 2);
        if (k == 2) CHECK_HAS(server.why, "a TLS record that was changed on the way");
        if (k < 2) CHECK_EQ(memmem(other, (size_t)other_bytes, words, sizeof words) != NULL, k == 0);
        close_ends(&server, &client);
        relay_close(&r);
        (void)close(r.listener);
    }
}
