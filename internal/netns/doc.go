// SPDX-License-Identifier: Apache-2.0

// Package netns holds network namespaces open, works inside them, and finds
// which ones there are.
//
// A namespace is held by a descriptor, so it cannot be mistaken for a later one
// that was given the same name, process id or inode number. The package
// configures nothing beyond the loopback device of the namespaces it creates.
// It has no state; package registry beside it keeps the node's namespaces open
// while they are in use.
//
// Privileges: Do needs CAP_SYS_ADMIN (over the namespace and over the caller's
// own), New needs CAP_SYS_ADMIN, Caller and FromSocket need CAP_NET_ADMIN over the
// namespace asked for, and List and Open of another user's /proc/PID/ns/net need
// CAP_SYS_PTRACE. Kernel floor: 4.11 (NS_GET_NSTYPE, NS_GET_OWNER_UID), 4.9 for
// SIOCGSKNS.
//
// Goroutines: every method may be called from any goroutine, Close included;
// see Do for what its function may do.
package netns
