// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
)

// Peer is the main function of a process that plays the peer of the incident
// that the first argument names, until ctx ends.
func Peer(ctx context.Context, args []string) error {
	switch role, args := roleOf(args); role {
	case poolName:
		return pooled(ctx, args)
	case callName:
		return callee(ctx, args)
	default:
		return fmt.Errorf("play peer: no incident %q", role)
	}
}

// roleOf parts the first argument from the others.
func roleOf(args []string) (string, []string) {
	if len(args) == 0 {
		return "", nil
	}
	return args[0], args[1:]
}

// pooled answers HTTP requests with its name until ctx ends. It says on standard
// output when it listens.
func pooled(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet(PeerCommand+" "+poolName, flag.ContinueOnError)
	addr := flags.String("listen", "", "address:port to listen on")
	name := flags.String("name", "", "what to answer")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ln, err := listen(ctx, *addr)
	if err != nil {
		return fmt.Errorf("listen as %s: %w", *name, err)
	}
	if err := emit(os.Stdout, event{Kind: eventReady}); err != nil {
		return errors.Join(err, ln.Close())
	}
	return serve(ctx, ln, *name)
}

// listen listens for plain TCP.
func listen(ctx context.Context, addr string) (net.Listener, error) {
	var cfg net.ListenConfig
	cfg.SetMultipathTCP(false) // Go's default where the kernel can
	return cfg.Listen(ctx, "tcp", addr)
}

// serve answers each request once its body has come, and never ends a
// connection by itself before ctx ends. It closes ln.
func serve(ctx context.Context, ln net.Listener, name string) error {
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return // the client is gone
		}
		_, _ = io.WriteString(w, name)
	})}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve as %s: %w", name, err)
	}
	return nil
}
