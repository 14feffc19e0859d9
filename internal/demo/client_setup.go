// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/report"
	"golang.org/x/sys/unix"
)

// clientConfig is a client's command line.
type clientConfig struct {
	names    string        // file of names
	patience time.Duration // wait for an answer
	socket   string        // the agent's report.sock; "": the client reports nothing
	bound    bound         // userTimeout 0: Go's own keepalive and nothing else
}

// args is the command line that newClient reads.
func (c clientConfig) args() []string {
	return []string{
		ClientCommand, poolName,
		"--names", c.names,
		"--patience", c.patience.String(),
		"--report", c.socket,
		"--idle", c.bound.idle.String(),
		"--interval", c.bound.interval.String(),
		"--count", strconv.Itoa(c.bound.count),
		"--user-timeout", c.bound.userTimeout.String(),
	}
}

func newClient(args []string) (*client, error) {
	c, err := parseClient(args)
	if err != nil {
		return nil, err
	}
	return &client{http: c.http(), url: fmt.Sprintf("http://%s:%d/", peerName, poolPort), now: conn.Now}, nil
}

func parseClient(args []string) (clientConfig, error) {
	var c clientConfig
	flags := flag.NewFlagSet(ClientCommand+" "+poolName, flag.ContinueOnError)
	flags.StringVar(&c.names, "names", "", "file that says where the peer is")
	flags.DurationVar(&c.patience, "patience", poolPatience, "wait for an answer")
	flags.StringVar(&c.socket, "report", "", "the agent's socket for reports")
	flags.DurationVar(&c.bound.idle, "idle", 0, "keepalive idle time")
	flags.DurationVar(&c.bound.interval, "interval", 0, "keepalive interval")
	flags.IntVar(&c.bound.count, "count", 0, "keepalive count")
	flags.DurationVar(&c.bound.userTimeout, "user-timeout", 0, "TCP_USER_TIMEOUT; 0: none of the last four")
	return c, flags.Parse(args)
}

// http is the client as an application would build it. The second form is all
// there is to an application that reports.
func (c clientConfig) http() *http.Client {
	pool := &http.Transport{DialContext: c.dial, MaxIdleConnsPerHost: poolConns}
	if c.socket == "" {
		return &http.Client{Transport: pool, Timeout: c.patience}
	}
	return &http.Client{Transport: &report.Transport{
		Base:        pool,
		Reporter:    &report.Client{Socket: c.socket},
		CallTimeout: c.patience,
		OnResult:    logReport,
	}}
}

// logReport leaves a trace for the case that a figure does not hold.
func logReport(r report.Request, resp *report.Response, err error) {
	fmt.Fprintf(os.Stderr, "reported %s -> %s, call %d ms: %+v, %v\n", r.Local, r.Peer, r.ElapsedMS, resp, err)
}

// dial opens a connection to where the name is now.
func (c clientConfig) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	name, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	ip, err := resolve(c.names, name)
	if err != nil {
		return nil, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	var d net.Dialer
	if c.bound.userTimeout > 0 {
		d.KeepAliveConfig = net.KeepAliveConfig{
			Enable: true, Idle: c.bound.idle, Interval: c.bound.interval, Count: c.bound.count,
		}
		d.Control = c.bound.control
	}
	return d.DialContext(ctx, network, netip.AddrPortFrom(ip, uint16(n)).String())
}

// control sets the option for which package net has no name.
func (b bound) control(_, _ string, raw syscall.RawConn) error {
	var err error
	ctlErr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(b.userTimeout.Milliseconds()))
	})
	if err = errors.Join(ctlErr, err); err != nil {
		return fmt.Errorf("set TCP_USER_TIMEOUT: %w", err)
	}
	return nil
}
