"""One of several processors that share the routing topic: a Kafka consumer group."""
