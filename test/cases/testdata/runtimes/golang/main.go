// SPDX-License-Identifier: Apache-2.0

// Sets keepalive as Go programs do: main ADDR:PORT WAY
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
)

func main() {
	c, err := dial(os.Args[1], os.Args[2])
	if err != nil {
		fmt.Println("cannot connect:", err)
		os.Exit(1)
	}
	fmt.Println("set")
	said := bufio.NewReader(c)
	for {
		line, err := said.ReadString('\n')
		var errno syscall.Errno
		if errors.As(err, &errno) && errno == syscall.ETIMEDOUT {
			fmt.Println("timed out")
			return
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Print(line)
	}
}

func dial(addr, way string) (net.Conn, error) {
	ctx := context.Background()
	switch way {
	case "default": // 15 s, 15 s, 9
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	case "config":
		d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Minute, Interval: 30 * time.Second, Count: 4}}
		return d.DialContext(ctx, "tcp", addr)
	case "off":
		c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		return c, c.(*net.TCPConn).SetKeepAlive(false)
	case "period":
		c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		return c, c.(*net.TCPConn).SetKeepAlivePeriod(time.Hour)
	}
	return nil, errors.New("no such way: " + way)
}
