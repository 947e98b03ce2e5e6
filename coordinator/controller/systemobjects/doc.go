// Package systemobjects makes the single objects that a cluster cannot do without again
// when somebody deletes them: the Service kubernetes and its endpoints, by which pods reach
// the API, the ConfigMaps of kube-system that tell extension API servers whom to trust and
// since when the use of old tokens is recorded, and the CSIDriver of the storage driver
// that ships with Shoal. What they say is the API server's to know; this package knows when
// it is to be said again.
package systemobjects
