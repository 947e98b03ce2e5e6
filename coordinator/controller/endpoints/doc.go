// Package endpoints keeps the Endpoints object of every Service with a
// selector, for clients that know no EndpointSlices yet.
package endpoints
