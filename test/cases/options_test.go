// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"errors"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// unset is what the kernel reports of a socket that nobody touched.
var unset = conn.Options{Idle: 2 * time.Hour, Interval: 75 * time.Second, Count: 9}

// policed are the values of a policy that says nothing else.
var policed = conn.Options{KeepAlive: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 5, UserTimeout: 15 * time.Second}

// control calls fn with a connection's descriptor, on any goroutine.
func control(c syscall.Conn, fn func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	ctlErr := raw.Control(func(fd uintptr) { err = fn(int(fd)) })
	return errors.Join(err, ctlErr)
}

// optionsOf reads the five options that bound a connection.
func optionsOf(fd int) (o conn.Options, err error) {
	get := func(level, option int) int {
		v, one := unix.GetsockoptInt(fd, level, option)
		err = errors.Join(err, one)
		return v
	}
	o = conn.Options{
		KeepAlive:   get(unix.SOL_SOCKET, unix.SO_KEEPALIVE) != 0,
		Idle:        time.Duration(get(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)) * time.Second,
		Interval:    time.Duration(get(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL)) * time.Second,
		Count:       get(unix.IPPROTO_TCP, unix.TCP_KEEPCNT),
		UserTimeout: time.Duration(get(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)) * time.Millisecond,
	}
	return o, err
}

// ask sets what an application wishes; zeros are not set.
func ask(c syscall.Conn, o conn.Options) error {
	return control(c, func(fd int) (err error) {
		set := func(level, option, value int) {
			if value != 0 {
				err = errors.Join(err, unix.SetsockoptInt(fd, level, option, value))
			}
		}
		if o.KeepAlive {
			set(unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
		}
		set(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(o.Idle/time.Second))
		set(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(o.Interval/time.Second))
		set(unix.IPPROTO_TCP, unix.TCP_KEEPCNT, o.Count)
		set(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(o.UserTimeout/time.Millisecond))
		return err
	})
}

// wished is what a socket shows on which that was set, and no more.
func wished(o conn.Options) conn.Options {
	if o.Idle == 0 {
		o.Idle = unset.Idle
	}
	if o.Interval == 0 {
		o.Interval = unset.Interval
	}
	if o.Count == 0 {
		o.Count = unset.Count
	}
	return o
}

// forgives reports whether a connection with these options is ended by a path that
// is dead, and not by a few packets lost: the rule that a policy file is held to,
// with room for three lost probes where the application asks for fewer.
func forgives(o conn.Options) bool {
	room := time.Duration(max(o.Count, 3)) * o.Interval
	return o.KeepAlive && o.UserTimeout > 0 && o.Idle+room <= o.UserTimeout
}
