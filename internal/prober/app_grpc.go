// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
)

// errOneConnection keeps the HTTP/2 client from dialing another one.
var errOneConnection = errors.New("the question has had its connection")

// talkGRPC is the unary call grpc.health.v1.Health/Check over HTTP/2 without
// TLS. The status is not looked at. Nor is it waited for: the first byte from a
// gRPC server is its SETTINGS frame, and a server that sends one runs, even
// where the call then fails with UNIMPLEMENTED or goes unanswered.
func talkGRPC(q question, userAgent string) talk {
	return func(c net.Conn) error {
		client := clientOn(c)
		defer client.CloseIdleConnections()
		body := bytes.NewReader(healthCheck(q.text))
		req, err := http.NewRequest(http.MethodPost, "http://"+q.to.String()+"/grpc.health.v1.Health/Check", body)
		if err != nil {
			return fmt.Errorf("make health check of %s: %w", q.to, err)
		}
		req.Header = http.Header{
			"Content-Type": {"application/grpc"},
			"Te":           {"trailers"},
			"User-Agent":   {userAgent},
			"Grpc-Timeout": {fmt.Sprintf("%dm", q.timeout.Milliseconds())}, // m is milliseconds
		}
		resp, err := client.RoundTrip(req)
		if err != nil {
			return fmt.Errorf("call health check of %s: %w", q.to, err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, maxReply)); err != nil {
			return fmt.Errorf("read health of %s: %w", q.to, err)
		}
		return nil
	}
}

// clientOn speaks HTTP/2 on one connection, and only on that. It ends with the
// connection.
func clientOn(c net.Conn) *http.Transport {
	var used atomic.Bool
	t := &http.Transport{
		Protocols: new(http.Protocols),
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			if used.Swap(true) {
				return nil, errOneConnection
			}
			return c, nil
		},
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxReply,
	}
	t.Protocols.SetUnencryptedHTTP2(true)
	return t
}

// healthCheck is a gRPC message, not compressed, with a HealthCheckRequest: its
// field 1 is the service's name, left out where it is empty.
func healthCheck(service string) []byte {
	var message []byte
	if service != "" {
		const field1Bytes = 1<<3 | 2
		message = binary.AppendUvarint([]byte{field1Bytes}, uint64(len(service)))
		message = append(message, service...)
	}
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}
