// SPDX-License-Identifier: Apache-2.0

// Command inside is the application of a container in the tests: it does what it is
// told, one JSON object a line on standard input, and answers each in the same way.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/report"
)

// limit is how long anything may take.
const limit = 20 * time.Second

// ask is what it is told.
type ask struct {
	Do    string // open, echo, write, read, report
	Local netip.AddrPort
	Peer  netip.AddrPort
	// Cookie, Socket and Elapsed belong to a report.
	Cookie  uint64
	Socket  string
	Elapsed time.Duration
}

// told is what it answers.
type told struct {
	Cookie  uint64 // of what was opened
	Results []report.Result
	Error   string
}

func main() {
	open := make(map[netip.AddrPort]*net.TCPConn)
	out := json.NewEncoder(os.Stdout)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var a ask
		var t told
		err := json.Unmarshal(lines.Bytes(), &a)
		if err == nil {
			err = a.answer(open, &t)
		}
		if err != nil {
			t.Error = err.Error()
		}
		if out.Encode(t) != nil {
			return
		}
	}
}

func (a *ask) answer(open map[netip.AddrPort]*net.TCPConn, t *told) (err error) {
	switch a.Do {
	case "open":
		open[a.Local], t.Cookie, err = dial(a.Local, a.Peer)
		return err
	case "report":
		return a.report(t)
	}
	c := open[a.Local]
	if c == nil {
		return fmt.Errorf("%s: not open", a.Local)
	}
	if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	if a.Do != "read" {
		if _, err := c.Write([]byte("ping")); err != nil || a.Do == "write" {
			return err
		}
	}
	_, err = io.ReadFull(c, make([]byte, 4))
	return err
}

func dial(local, peer netip.AddrPort) (*net.TCPConn, uint64, error) {
	d := net.Dialer{Timeout: limit, KeepAlive: -1, LocalAddr: net.TCPAddrFromAddrPort(local)}
	conn, err := d.Dial("tcp4", peer.String())
	if err != nil {
		return nil, 0, err
	}
	c := conn.(*net.TCPConn)
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, 0, err
	}
	var cookie uint64
	if ctlErr := raw.Control(func(fd uintptr) { cookie, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE) }); ctlErr != nil {
		return nil, 0, ctlErr
	}
	return c, cookie, err
}

// report reports a call through the agent's socket.
func (a *ask) report(t *told) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	r := report.Request{Cookie: a.Cookie, ElapsedMS: a.Elapsed.Milliseconds()}
	if a.Local.IsValid() {
		r.Local = a.Local.String()
	}
	if a.Peer.IsValid() {
		r.Peer = a.Peer.String()
	}
	resp, err := (&report.Client{Socket: a.Socket}).Report(ctx, r)
	if err != nil {
		return err
	}
	t.Results = resp.Results
	return nil
}
