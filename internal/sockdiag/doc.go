// SPDX-License-Identifier: Apache-2.0

// Package sockdiag speaks inet_diag, the kernel's netlink interface to TCP
// sockets: look at one exact socket, list those of a network namespace, and
// destroy one exact socket.
//
// It carries out what it is told: it knows no policy and gives no verdict. It
// destroys by tuple, cookie and namespace together, acknowledged, and never a
// socket that it could not name so (kernel-facts C1, C6). It does not fill a
// conn.Snapshot: inet_diag has neither snd_una nor rcv_nxt.
//
// Wire format (wire.go, decode.go) and input and output (conn.go) are apart;
// the first two are pure.
//
// Privileges: none to look; CAP_NET_ADMIN over the namespace to destroy and to
// see marks and MD5 keys. Kernel floor: 4.5 with CONFIG_INET_DIAG and
// CONFIG_INET_TCP_DIAG, and CONFIG_INET_DIAG_DESTROY to destroy; cgroup ids since
// 5.7. What is missing of these is ErrUnsupported.
//
// Goroutines: a Conn may be used from any number; requests go one by one.
package sockdiag
