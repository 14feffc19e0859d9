/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Which connections are not ours to touch. */
#ifndef SOCKHEALTH_REFUSE_H
#define SOCKHEALTH_REFUSE_H

#include "sock.h"
#include "adopt.h"

/*
 * The kernel's own connections (NFS, nvme-tcp, iSCSI). Most are made as such.
 * Those that are not have no file, or one of the kernel's; then the kernel has
 * left its own pointer in sk_user_data, without the flag bits of a psock
 * (sockmap). One that waits to be accepted has no struct socket yet, and is not
 * the kernel's for that.
 */
static __always_inline bool is_kernels(const struct sock *sk)
{
	struct socket *sock = sk->sk_socket;
	unsigned long data = (unsigned long)sk->sk_user_data;

	return BPF_CORE_READ_BITFIELD(sk, sk_kern_sock) || (sock && !sock->file) ||
	       (data && !(data & 7));
}

/* Why a connection is not ours to touch. */
static __always_inline __u8 refusal(const struct tcp_sock *tp)
{
	const struct sock *sk = &tp->inet_conn.icsk_inet.sk;

	if (is_mptcp(tp))
		return SH_REFUSE_MPTCP;
	if (sock_flag(sk, bpf_core_enum_value(enum sock_flags, SOCK_DEAD)))
		return SH_REFUSE_ORPHAN;
	if (is_kernels(sk))
		return SH_REFUSE_KERNEL;
	if (BPF_CORE_READ_BITFIELD(tp, repair))
		return SH_REFUSE_REPAIR;
	if (has_keys(tp))
		return SH_REFUSE_MD5_OR_AO;
	return SH_REFUSE_NONE;
}

#endif
