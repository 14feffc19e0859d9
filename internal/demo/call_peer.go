// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
)

// calleeConfig is the command line of a peer that is called.
type calleeConfig struct {
	name   string
	listen string // address:port for channels
	health string // address:port of the health endpoint; "": there is none
	status int    // what that answers with
}

// args is the command line that parseCallee reads.
func (c calleeConfig) args() []string {
	return []string{
		PeerCommand, callName, "--name", c.name, "--listen", c.listen,
		"--health", c.health, "--status", strconv.Itoa(c.status),
	}
}

func parseCallee(args []string) (calleeConfig, error) {
	var c calleeConfig
	flags := flag.NewFlagSet(PeerCommand+" "+callName, flag.ContinueOnError)
	flags.StringVar(&c.name, "name", "", "who answers")
	flags.StringVar(&c.listen, "listen", "", "address:port for channels")
	flags.StringVar(&c.health, "health", "", "address:port of the health endpoint")
	flags.IntVar(&c.status, "status", 0, "HTTP status of the health endpoint")
	return c, flags.Parse(args)
}

// callee answers calls and questions about its health until ctx ends. It says
// on standard output when it listens.
func callee(ctx context.Context, args []string) error {
	cfg, err := parseCallee(args)
	if err != nil {
		return err
	}
	ln, err := listen(ctx, cfg.listen)
	if err != nil {
		return fmt.Errorf("listen as %s: %w", cfg.name, err)
	}
	defer ln.Close()
	if cfg.health != "" {
		health, err := listen(ctx, cfg.health)
		if err != nil {
			return fmt.Errorf("listen for health checks of %s: %w", cfg.name, err)
		}
		answers := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(cfg.status) })
		server := &http.Server{Handler: answers}
		defer server.Close()
		go func() { _ = server.Serve(health) }()
	}
	if err := emit(os.Stdout, event{Kind: eventReady}); err != nil {
		return err
	}
	return serveCalls(ctx, ln, cfg.name)
}

// serveCalls answers each call after its work, and never ends a connection by
// itself before ctx ends. It closes ln and returns when all work has ended.
func serveCalls(ctx context.Context, ln net.Listener, name string) error {
	var all sync.WaitGroup
	defer all.Wait()
	defer context.AfterFunc(ctx, func() { _ = ln.Close() })()
	for {
		c, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("serve as %s: %w", name, err)
		}
		all.Go(func() { serveChannel(ctx, c, name) })
	}
}

// serveChannel answers the calls of one connection.
func serveChannel(ctx context.Context, c net.Conn, name string) {
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	defer c.Close()
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	var mu sync.Mutex // guards the writing
	for in := json.NewDecoder(c); ; {
		var r callRequest
		if in.Decode(&r) != nil {
			return // the client is gone, and its calls with it
		}
		work.Go(func() {
			if !sleep(ctx, r.Work) {
				return
			}
			a := callAnswer{ID: r.ID, Server: name}
			if r.Fail {
				a.Err = callRefusal
			}
			mu.Lock()
			defer mu.Unlock()
			_ = writeLine(c, a) // an error says that the client is gone
		})
	}
}
