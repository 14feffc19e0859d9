// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Closes chosen sockets where inet_diag cannot. Linux 6.5 and later
 * (bpf_sock_destroy, which wants the socket locked as that kernel's iterator
 * does it). Not weak: a kernel without it refuses the object and says so.
 */
#include "sock.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

int bpf_sock_destroy(struct sock_common *sk) __ksym;

/* What a pass made of one socket. */
enum sh_outcome {
	SH_UNMET,     /* no socket has that cookie */
	SH_OTHER,     /* it is connected elsewhere meanwhile */
	SH_REFUSED,   /* it is not one to destroy */
	SH_LATE,      /* what condemned it is out of date */
	SH_DESTROYED, /* the kernel was asked to: err has its answer */
};

/* One socket to destroy, all that names it but the cookie. */
struct sh_condemned {
	struct sh_tuple tuple;
	__u64 until_ns; /* a walk can be held up: later nothing is done any more */
	__u32 ifindex;	/* of the device that it is bound to */
	__u16 family;
	__u8 outcome; /* enum sh_outcome */
	__u8 pad;
	__s32 err; /* negative errno, 0: destroyed */
};

const enum sh_outcome *const unused_outcome __attribute__((unused));

/*
 * The sockets to destroy in this pass, by cookie. The result is left here and
 * not written to the reader: a row that finds its buffer full makes the
 * iterator come back to its socket, which is gone by then.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct sh_condemned);
} sh_targets SEC(".maps");

static __always_inline bool same_addr(const __u8 *a, const __u8 *b)
{
	const __be32 *x = (const __be32 *)a, *y = (const __be32 *)b;

	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2] && x[3] == y[3];
}

/* A socket can be connected anew, elsewhere, and keeps its cookie. */
static __always_inline bool is_meant(const struct sock *sk, const struct sh_condemned *c)
{
	const struct sock_common *skc = &sk->__sk_common;
	struct sh_tuple have = {};

	if (skc->skc_family != c->family || skc->skc_bound_dev_if != (int)c->ifindex)
		return false;
	sock_addrs(sk, have.local, have.remote);
	return skc->skc_num == c->tuple.local_port &&
	       bpf_ntohs(skc->skc_dport) == c->tuple.remote_port &&
	       same_addr(have.local, c->tuple.local) && same_addr(have.remote, c->tuple.remote);
}

/*
 * The states that carry a connection, as long as a process has it open: before
 * 6.11 an orphan leaked, and one in the accept queue belongs to its listener.
 */
static __always_inline bool is_destroyable(const struct sock *sk)
{
	if (sock_flag(sk, bpf_core_enum_value(enum sock_flags, SOCK_DEAD)) || !sk->sk_socket)
		return false;
	switch (sk->__sk_common.skc_state) {
	case BPF_TCP_ESTABLISHED:
	case BPF_TCP_CLOSE_WAIT:
	case BPF_TCP_FIN_WAIT1:
	case BPF_TCP_FIN_WAIT2:
		return true;
	}
	return false;
}

SEC("iter/tcp") int sh_destroy(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct sh_condemned *c;
	struct tcp_sock *tp;
	struct sock *sk;
	__u64 cookie;

	if (!skc)
		return 0;
	tp = bpf_skc_to_tcp_sock(skc); /* NULL: a request or TIME_WAIT */
	if (!tp)
		return 0;
	sk = &tp->inet_conn.icsk_inet.sk;
	cookie = sk->__sk_common.skc_cookie.counter;
	c = bpf_map_lookup_elem(&sh_targets, &cookie);
	if (!c)
		return 0;
	if (!is_meant(sk, c)) {
		c->outcome = SH_OTHER;
	} else if (!is_destroyable(sk)) {
		c->outcome = SH_REFUSED;
	} else if (bpf_ktime_get_ns() > c->until_ns) {
		c->outcome = SH_LATE;
	} else {
		c->err = bpf_sock_destroy(skc);
		c->outcome = SH_DESTROYED;
	}
	return 0;
}
