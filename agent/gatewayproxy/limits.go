package gatewayproxy

import "time"

// What clients may take. The times are those of proxies that face the Internet: nginx
// has 60 s for a request's header, Envoy's advice for the edge is 10 s
// (https://www.envoyproxy.io/docs/envoy/latest/configuration/best_practices/edge).
const (
	headerTime  = 10 * time.Second // for a request's header, and a TLS handshake
	idleTime    = 2 * time.Minute  // between requests of a connection
	headerBytes = 64 << 10
	// connections bounds those of a port at a time; more wait for the kernel.
	connections = 16384
	// streamIdle ends a TCP connection of which neither side says anything, streamsLinger
	// one whose client has ended.
	streamIdle = time.Hour
	// datagramIdle forgets a client of UDP, maxSessions bounds how many a port knows.
	datagramIdle = time.Minute
	maxSessions  = 4096
	// http2Streams are requests at a time of an HTTP/2 connection.
	http2Streams = 250
	dialTime     = 5 * time.Second
	// replayed is how much of a request's body is kept to send it again.
	replayed = 64 << 10
	mirrors  = 256 // copies of requests under way
	mirrored = 1 << 20
)
