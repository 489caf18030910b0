#include "comm/link/address.h"

#include "base/assert.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- one address ---------------------------------------------------------------------------------------- */

static ravel_status no_address(const char *text, size_t length, ravel_error *err) {
    return ravel_error_set(err, RAVEL_E_ARGUMENT,
                           "\"%.*s\" is not an address; write host:port, [IPv6 address]:port, unix:/path or unix:@name",
                           (int)(length < 100 ? length : 100), text);
}

static ravel_status parse_unix(const char *path, size_t length, ravel__address *a, ravel_error *err) {
    struct sockaddr_un *un = (struct sockaddr_un *)(void *)&a->at;
    if (length == 0 || length >= sizeof un->sun_path)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "the path of a Unix socket must have 1 to %zu characters, not %zu",
                               sizeof un->sun_path - 1, length);
    un->sun_family = AF_UNIX;
    memcpy(un->sun_path, path, length);
    a->bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length + (path[0] != '@'));
    RAVEL_ASSERT(a->bytes <= sizeof *un);
    if (path[0] == '@') un->sun_path[0] = '\0'; /* an abstract name: no file, no terminating NUL */
    return RAVEL_OK;
}

/* "host:port" at the last colon; brackets around an IPv6 host. 0 if it has no such form. */
static int cut(const char *text, size_t length, char *host, size_t room, long *port) {
    const char *colon = NULL;
    char *end, digits[8] = "";
    for (size_t i = 0; i < length; i++)
        if (text[i] == ':') colon = text + i;
    if (!colon || (size_t)(colon - text) >= room) return 0;
    size_t host_length = (size_t)(colon - text), port_length = length - host_length - 1;
    if (port_length < 1 || port_length > 5) return 0;
    memcpy(digits, colon + 1, port_length);
    *port = strtol(digits, &end, 10);
    if (*end || digits[0] < '0' || digits[0] > '9' || *port > 65535) return 0;
    if (host_length >= 2 && text[0] == '[' && text[host_length - 1] == ']')
        text++, host_length -= 2;
    else if (memchr(text, ':', host_length)) /* an IPv6 address without brackets: which colon begins the port? */
        return 0;
    RAVEL_ASSERT(host_length < room && *port >= 0 && *port <= 65535);
    memcpy(host, text, host_length);
    host[host_length] = '\0';
    return 1;
}

ravel_status ravel__address_parse(const char *text, size_t length, ravel__address *address, ravel_error *err) {
    char host[256], service[24];
    long port = 0;
    struct addrinfo hints, *found = NULL;
    memset(address, 0, sizeof *address);
    if (length > 5 && memcmp(text, "unix:", 5) == 0) return parse_unix(text + 5, length - 5, address, err);
    if (!cut(text, length, host, sizeof host, &port)) return no_address(text, length, err);
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV | (host[0] == '*' ? AI_PASSIVE : 0);
    (void)snprintf(service, sizeof service, "%ld", port);
    const char *name = host[0] == '*' ? "0.0.0.0" : host[0] ? host : "127.0.0.1";
    int code = getaddrinfo(name, service, &hints, &found);
    if (code || !found)
        return ravel_error_set(err, RAVEL_E_IO, "the host \"%.100s\" cannot be found: %s", name, gai_strerror(code));
    memcpy(&address->at, found->ai_addr, found->ai_addrlen);
    address->bytes = found->ai_addrlen;
    freeaddrinfo(found);
    return RAVEL_OK;
}

static const char *format_unix(const ravel__address *a, char *text) {
    const struct sockaddr_un *un = (const struct sockaddr_un *)(const void *)&a->at;
    size_t used = (size_t)a->bytes - offsetof(struct sockaddr_un, sun_path);
    if (a->bytes <= offsetof(struct sockaddr_un, sun_path)) used = 0; /* the peer has no name */
    int abstract = used > 0 && un->sun_path[0] == '\0';
    (void)snprintf(text, RAVEL__ADDRESS_TEXT, "unix:%s%.*s", abstract ? "@" : "", (int)used - abstract,
                   un->sun_path + abstract);
    return text;
}

const char *ravel__address_format(const ravel__address *a, char text[RAVEL__ADDRESS_TEXT]) {
    char host[INET6_ADDRSTRLEN] = "?";
    if (a->at.ss_family == AF_UNIX) return format_unix(a, text);
    if (a->at.ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)&a->at;
        (void)inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof host);
        (void)snprintf(text, RAVEL__ADDRESS_TEXT, "[%s]:%d", host, ntohs(in6->sin6_port));
    } else {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)&a->at;
        (void)inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
        (void)snprintf(text, RAVEL__ADDRESS_TEXT, "%s:%d", host, ntohs(in->sin_port));
    }
    return text;
}

int ravel__address_is_local(const ravel__address *a) {
    const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)&a->at;
    const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)&a->at;
    if (a->at.ss_family == AF_UNIX) return 1;
    if (a->at.ss_family == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
    return ntohl(in->sin_addr.s_addr) >> 24 == 127;
}

void ravel__address_set_port(ravel__address *a, int32_t port) {
    RAVEL_ASSERT(port >= 0 && port <= 65535);
    if (a->at.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)(void *)&a->at)->sin6_port = htons((uint16_t)port);
    else if (a->at.ss_family == AF_INET)
        ((struct sockaddr_in *)(void *)&a->at)->sin_port = htons((uint16_t)port);
}

/* ---- networks ------------------------------------------------------------------------------------------- */

typedef struct network {
    uint8_t at[16];
    int family, bits;
} network;

/* "10.0.0.0/8" from text[0 .. length-1]; 0 if it is none. */
static int parse_network(const char *text, size_t length, network *n) {
    char word[64], *slash, *end;
    if (length == 0 || length >= sizeof word) return 0;
    memcpy(word, text, length);
    word[length] = '\0';
    slash = strchr(word, '/');
    if (slash) *slash = '\0';
    n->family = strchr(word, ':') ? AF_INET6 : AF_INET;
    int most = n->family == AF_INET6 ? 128 : 32;
    if (inet_pton(n->family, word, n->at) != 1) return 0;
    n->bits = most;
    if (!slash) return 1;
    long bits = strtol(slash + 1, &end, 10);
    if (slash[1] < '0' || slash[1] > '9' || *end || bits > most) return 0;
    n->bits = (int)bits;
    return 1;
}

static int is_in(const network *n, int family, const uint8_t *bytes) {
    if (n->family != family) return 0;
    RAVEL_ASSERT(n->bits >= 0 && n->bits <= (family == AF_INET6 ? 128 : 32));
    int whole = n->bits / 8, rest = n->bits % 8;
    if (memcmp(n->at, bytes, (size_t)whole) != 0) return 0;
    return rest == 0 || (n->at[whole] ^ bytes[whole]) >> (8 - rest) == 0;
}

ravel_status ravel__networks_check(const char *list, ravel_error *err) {
    network n;
    for (const char *word = list; word && *word;) {
        size_t length = strcspn(word, ",");
        if (!parse_network(word, length, &n))
            return ravel_error_set(
                err, RAVEL_E_ARGUMENT,
                "\"%.*s\" is not a network; write addresses or address/bits, like 10.0.0.0/8,fd00::/8",
                (int)(length < 60 ? length : 60), word);
        word += length + (word[length] == ',');
    }
    return RAVEL_OK;
}

int ravel__networks_hold(const char *list, const ravel__address *a) {
    const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)&a->at;
    const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)&a->at;
    int family = a->at.ss_family;
    if (!list || !*list || family == AF_UNIX) return 1;
    const uint8_t *bytes = family == AF_INET6 ? in6->sin6_addr.s6_addr : (const uint8_t *)&in->sin_addr;
    if (family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr)) family = AF_INET, bytes += 12;
    for (const char *word = list; *word;) {
        size_t length = strcspn(word, ",");
        network n;
        if (parse_network(word, length, &n) && is_in(&n, family, bytes)) return 1;
        word += length + (word[length] == ',');
    }
    return 0;
}
