// Package launch translates a Pod into the messages of the container runtime
// interface (CRI): Container and Sandbox. It is pure: the worker (package pod)
// tells it facts, and makes the files that it asks for.
package launch
