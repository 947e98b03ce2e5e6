// Package garbagecollector deletes objects whose owners are gone and carries
// out foreground and orphan deletion. It keeps a graph of all objects' metadata
// by UID, fed by the shared informers where there is one and by metadata
// informers for custom resources. Only the API server's answer deletes.
package garbagecollector
