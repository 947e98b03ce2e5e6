// Package job runs pods to completion: as many as succeed as a Job asks for,
// with indexes, back-off, failure and success policies. Each finished pod is
// counted exactly once, by its tracking finalizer (KEP-2307).
package job
