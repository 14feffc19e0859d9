/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Which connections are the kernel's own: NFS, SMB, nvme-tcp, iSCSI. */
#ifndef SOCKHEALTH_KERNELS_H
#define SOCKHEALTH_KERNELS_H

#include "sock.h"

/*
 * Listeners of the kernel's own servers, and what they have accepted: it inherits
 * the mark. A connection that nobody has taken out of the accept queue yet shows
 * only that its listener was made in the kernel, as is every listener of Multipath
 * TCP, whose connections are an application's.
 */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, __u32); /* there or not */
} sh_servers SEC(".maps");

/* Marks a listener of the kernel's own. */
static __always_inline void mark_listener(struct tcp_sock *tp)
{
	const struct sock *sk = &tp->inet_conn.icsk_inet.sk;

	if (BPF_CORE_READ_BITFIELD(sk, sk_kern_sock) && !is_mptcp(tp))
		bpf_sk_storage_get(&sh_servers, tp, NULL, BPF_SK_STORAGE_GET_F_CREATE);
}

/*
 * Most of the kernel's own are made as such. Those that are not have no file, or one
 * of the kernel's; then the kernel has left its own pointer in sk_user_data, without
 * the flag bits of a psock (sockmap). One that waits to be accepted has no struct
 * socket yet.
 */
static __always_inline bool is_kernels(struct tcp_sock *tp)
{
	const struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	unsigned long data = (unsigned long)sk->sk_user_data;
	bool made = BPF_CORE_READ_BITFIELD(sk, sk_kern_sock);
	struct socket *sock = sk->sk_socket;

	if (!sock)
		return made && bpf_sk_storage_get(&sh_servers, tp, NULL, 0);
	return made || !sock->file || (data && !(data & 7));
}

#endif
