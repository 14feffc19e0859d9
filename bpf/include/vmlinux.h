/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The kernel structs that the programs read, and of them only the fields that
 * they read. Offsets come from the running kernel's BTF when a program is
 * loaded (CO-RE), so neither order nor size matters here.
 *
 * They are read by direct loads from BTF pointers, never by bpf_probe_read*:
 * the latter is refused under lockdown=confidentiality.
 */
#ifndef SOCKHEALTH_VMLINUX_H
#define SOCKHEALTH_VMLINUX_H

#include <linux/types.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef _Bool bool;
#define true  1
#define false 0
#define NULL  ((void *)0)

struct ns_common {
	unsigned int inum;
};

struct netns_xfrm {
	unsigned int policy_count[6]; /* in, out, forwarded, and the same for sockets */
};

struct netns_ipv4 {
	__u8 sysctl_tcp_retries2; /* an int before Linux 5.13 */
};

struct net {
	struct ns_common ns;
	struct netns_ipv4 ipv4;
	struct netns_xfrm xfrm;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct in6_addr {
	union {
		__u8 u6_addr8[16];
		__be32 u6_addr32[4];
	} in6_u;
};

typedef struct {
	__s64 counter;
} atomic64_t;

typedef struct {
	unsigned int val;
} kuid_t;

struct sock_common {
	union {
		struct {
			__be32 skc_daddr;
			__be32 skc_rcv_saddr;
		};
	};
	union {
		struct {
			__be16 skc_dport;
			__u16 skc_num;
		};
	};
	unsigned short skc_family;
	volatile unsigned char skc_state;
	unsigned char skc_reuse : 4, skc_reuseport : 1, skc_ipv6only : 1, skc_net_refcnt : 1;
	int skc_bound_dev_if;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
	atomic64_t skc_cookie;
	union {
		unsigned long skc_flags;
	};
};

enum sock_flags {
	SOCK_DEAD = 0,
	SOCK_DONE = 1,
	SOCK_KEEPOPEN = 3,
};

struct net_device {
	unsigned long state;
	unsigned int flags;
	int ifindex;
};

enum netdev_state_t {
	__LINK_STATE_START = 0,
	__LINK_STATE_NOCARRIER = 2,
};

struct dst_entry {
	struct net_device *dev;
};

typedef struct {
	int owned;
} socket_lock_t;

struct timer_list {
	unsigned long expires;
};

struct socket;

struct kernfs_node {
	__u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
};

/* Before Linux 5.15 it shares its word with a class of net_cls. */
struct sock_cgroup_data {
	struct cgroup *cgroup;
};

struct sock {
	struct sock_common __sk_common;
	socket_lock_t sk_lock;
	struct {
		int len;
	} sk_backlog;
	int sk_err;
	int sk_err_soft;
	__u32 sk_mark;
	kuid_t sk_uid;
	__u32 sk_txhash;
	struct dst_entry *sk_dst_cache;
	int sk_rx_dst_ifindex;			/* since Linux 5.16 */
	struct timer_list tcp_retransmit_timer; /* since Linux 6.19 */
	struct socket *sk_socket;
	void *sk_user_data;
	struct sock_cgroup_data sk_cgrp_data;
	__u8 sk_shutdown; /* since Linux 5.6 */
	__u8 sk_gso_disabled : 1, sk_kern_sock : 1;
};

struct ipv6_pinfo {
	__be32 flow_label;
	__u8 tclass;
};

struct inet_sock {
	struct sock sk;
	struct ipv6_pinfo *pinet6;
	__be16 inet_sport;
	__u8 tos;
	int rx_dst_ifindex; /* until Linux 5.15 */
};

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	struct timer_list icsk_retransmit_timer; /* until Linux 6.18 */
	__u8 icsk_retransmits;
	__u8 icsk_pending;
	__u8 icsk_probes_out;
	__u32 icsk_probes_tstamp;
	__u32 icsk_rto_max;
	struct {
		__u32 lrcvtime;
	} icsk_ack;
	__u32 icsk_user_timeout;
};

struct tcp_options_received {
	__u32 ts_recent;
	__u16 saw_tstamp : 1, tstamp_ok : 1, dsack : 1, wscale_ok : 1, sack_ok : 3, smc_ok : 1,
		snd_wscale : 4, rcv_wscale : 4;
};

struct tcp_md5sig_info;
struct tcp_ao_info;

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u64 bytes_received;
	__u64 bytes_sent;
	__u64 bytes_acked;
	__u32 snd_una;
	__u32 snd_nxt;
	__u32 write_seq;
	__u32 rcv_nxt;
	__u32 copied_seq;
	__u32 snd_wnd;
	__u32 snd_wl1;
	__u32 rcv_wnd;
	__u32 rcv_wup;
	__u32 rcv_tstamp;
	__u32 lsndtime;
	__u64 delivered_mstamp;
	__u32 packets_out;
	__u32 retrans_stamp;
	__u32 srtt_us;
	__u32 tsoffset;
	struct tcp_options_received rx_opt;
	__u8 repair : 1;
	__u8 tcp_usec_ts : 1;
	__u8 keepalive_probes;
	__u8 bpf_sock_ops_cb_flags;
	unsigned int keepalive_time;
	unsigned int keepalive_intvl;
	bool is_mptcp;
	struct tcp_md5sig_info *md5sig_info;
	struct tcp_ao_info *ao_info;
};

struct seq_file {
	unsigned long size;
	unsigned long count;
};

struct bpf_iter_meta {
	struct seq_file *seq;
	__u64 session_id;
	__u64 seq_num;
};

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
	unsigned int uid;
};

struct bpf_map;

struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	struct sock *sk;
	void *value;
};

struct socket {
	struct file *file;
	struct sock *sk;
};

struct super_block {
	unsigned long s_magic;
};

struct inode {
	struct super_block *i_sb;
	unsigned long i_ino;
};

struct file {
	unsigned int f_flags;
	struct inode *f_inode;
	void *private_data;
};

struct nsproxy {
	struct net *net_ns;
};

struct task_struct {
	int pid;
	int tgid;
	struct nsproxy *nsproxy;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	__u32 fd;
	struct file *file;
};

#pragma clang attribute pop

#endif
