/* Addresses of links: "host:port", "[2001:db8::1]:port", ":port" (loopback), "unix:/path", "unix:@name" (Linux's
 * abstract names), and lists of networks. */
#ifndef RAVEL_COMM_ADDRESS_H
#define RAVEL_COMM_ADDRESS_H

#include <ravel/base.h>

#include <sys/socket.h>
#include <sys/un.h>

enum { RAVEL__ADDRESS_TEXT = 160 };

typedef struct ravel__address {
    struct sockaddr_storage at;
    socklen_t bytes;
} ravel__address;

/* One address from text[0 .. length-1]. A host name is looked up, which may take as long as the system's resolver does.
 * E_ARGUMENT: not an address, quoted; E_IO: unknown host name. */
ravel_status ravel__address_parse(const char *text, size_t length, ravel__address *address, ravel_error *err);
/* As text that ravel__address_parse takes; returns `text`. */
const char *ravel__address_format(const ravel__address *address, char text[RAVEL__ADDRESS_TEXT]);
/* Whether only processes of this machine can reach it. */
int ravel__address_is_local(const ravel__address *address);
void ravel__address_set_port(ravel__address *address, int32_t port);

/* Whether `list` ("10.0.0.0/8,192.168.1.5,fd00::/8") is a list of networks. */
ravel_status ravel__networks_check(const char *list, ravel_error *err);
/* Whether the address is in one of the networks. NULL or empty: every address is; Unix sockets always are. */
int ravel__networks_hold(const char *list, const ravel__address *address);

#endif
