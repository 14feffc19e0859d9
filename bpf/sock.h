/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the programs read of a TCP socket. */
#ifndef SOCKHEALTH_SOCK_H
#define SOCKHEALTH_SOCK_H

#include "include/vmlinux.h"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include "mask.h"
#include "sockhealth.h"

#define AF_INET		   2
#define AF_INET6	   10
#define SOL_SOCKET	   1
#define SOL_TCP		   6
#define SOL_IPV6	   41
#define IPV6_FLOWLABEL_MGR 32
#define SO_KEEPALIVE	   9
#define TCP_KEEPIDLE	   4
#define TCP_KEEPINTVL	   5
#define TCP_KEEPCNT	   6
#define TCP_USER_TIMEOUT   18
#define TCP_RTO_MAX_MS	   44
#define ECONNRESET	   104
#define ECONNABORTED	   103
#define ETIMEDOUT	   110
#define EPIPE		   32
#define IFF_UP		   1
#define SHUTDOWN_MASK	   3
#define ICSK_TIME_PROBE0   3

/* Ticks per second, set before the program is loaded. */
const volatile __u32 hz = 250;

/* The record in the socket. Every object shares the one map. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct sh_record);
} sh_records SEC(".maps");

/* Saturates where 32 bits of milliseconds end, after 49 days. */
static __always_inline __u32 ticks_to_ms(__u32 ticks)
{
	__u64 ms = (__u64)ticks * 1000 / hz;

	return ms | if_any(ms >> 32);
}

static __always_inline bool sock_flag(const struct sock *sk, int flag)
{
	return sk->__sk_common.skc_flags >> flag & 1;
}

/* States in which something of a connection is to come still, from either end. */
static __always_inline bool carries_connection(int state)
{
	return state == BPF_TCP_ESTABLISHED || state == BPF_TCP_CLOSE_WAIT ||
	       state == BPF_TCP_FIN_WAIT1 || state == BPF_TCP_FIN_WAIT2;
}

/* Nobody has it open any more. */
static __always_inline bool is_orphan(const struct tcp_sock *tp)
{
	return sock_flag(&tp->inet_conn.icsk_inet.sk,
			 bpf_core_enum_value(enum sock_flags, SOCK_DEAD));
}

static __always_inline bool sock_fin_received(const struct sock *sk)
{
	return sock_flag(sk, bpf_core_enum_value(enum sock_flags, SOCK_DONE));
}

/* ::ffff:a.b.c.d */
static __always_inline void map_v4(__u8 *dst, __be32 addr)
{
	__be32 *out = (__be32 *)dst;

	out[0] = 0;
	out[1] = 0;
	out[2] = bpf_htonl(0xffff);
	out[3] = addr;
}

static __always_inline bool is_mapped(const __u8 *addr)
{
	const __be32 *w = (const __be32 *)addr;

	return !w[0] && !w[1] && w[2] == bpf_htonl(0xffff);
}

/* The IPv6 address, or the IPv4 one in its mapped form where all bits of is_v4 are set. */
static __always_inline void copy_addr(__u8 *dst, const struct in6_addr *v6, __be32 v4, __u32 is_v4)
{
	__be32 *out = (__be32 *)dst;

	out[0] = v6->in6_u.u6_addr32[0] & ~is_v4;
	out[1] = v6->in6_u.u6_addr32[1] & ~is_v4;
	out[2] = (v6->in6_u.u6_addr32[2] & ~is_v4) | (bpf_htonl(0xffff) & is_v4);
	out[3] = (v6->in6_u.u6_addr32[3] & ~is_v4) | (v4 & is_v4);
}

/* The addresses that the socket itself has, IPv4 in its mapped form. */
static __always_inline void sock_addrs(const struct sock *sk, __u8 *local, __u8 *remote)
{
	const struct sock_common *skc = &sk->__sk_common;
	__u32 is_v4;

	if (!bpf_core_field_exists(skc->skc_v6_daddr)) { /* built without IPv6 */
		map_v4(local, skc->skc_rcv_saddr);
		map_v4(remote, skc->skc_daddr);
		return;
	}
	is_v4 = if_equal(skc->skc_family, AF_INET);
	copy_addr(local, &skc->skc_v6_rcv_saddr, skc->skc_rcv_saddr, is_v4);
	copy_addr(remote, &skc->skc_v6_daddr, skc->skc_daddr, is_v4);
}

/*
 * The id of the cgroup that the socket belongs to: the inode number of its
 * directory, also where that is gone by now. 0: this kernel does not tell.
 */
static __always_inline __u64 sock_cgroup(const struct sock *sk)
{
	if (!bpf_core_field_exists(sk->sk_cgrp_data.cgroup))
		return 0;
	return sk->sk_cgrp_data.cgroup->kn->id;
}

/* TCP_RTO_MAX_MS as it is, 0: this kernel has no such option. */
static __always_inline __u32 sock_rto_max_ms(const struct tcp_sock *tp)
{
	if (!bpf_core_field_exists(tp->inet_conn.icsk_rto_max))
		return 0;
	return ticks_to_ms(tp->inet_conn.icsk_rto_max);
}

/* What is set on the socket now; 0 where the kernel's default applies. */
static __always_inline void sock_options(const struct tcp_sock *tp, struct sh_options *out)
{
	const struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	__u32 tenths = sock_rto_max_ms(tp) / 100;

	out->user_timeout_ms = tp->inet_conn.icsk_user_timeout;
	out->idle_s = tp->keepalive_time / hz;
	out->interval_s = tp->keepalive_intvl / hz;
	out->count = tp->keepalive_probes;
	out->keepalive = sock_flag(sk, bpf_core_enum_value(enum sock_flags, SOCK_KEEPOPEN));
	out->asked = 0;
	out->rto_max = tenths & if_less(tenths, 0x100); /* ours are no longer */
}

/* Whether its segments are signed (TCP-MD5, TCP-AO). */
static __always_inline bool has_keys(const struct tcp_sock *tp)
{
	return (bpf_core_field_exists(tp->md5sig_info) && tp->md5sig_info) ||
	       (bpf_core_field_exists(tp->ao_info) && tp->ao_info);
}

static __always_inline bool is_mptcp(const struct tcp_sock *tp)
{
	return bpf_core_field_exists(tp->is_mptcp) && tp->is_mptcp;
}

#endif
