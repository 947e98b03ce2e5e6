// Package store keeps the cluster's state: an etcd inside this process, spoken
// to without a socket, or etcd servers elsewhere. All API objects, custom ones
// too, go through the options it hands out; nothing else knows etcd.
package store
