"""Shipping: batch log → Kafka, at least once and in order, whatever becomes of the broker."""

from moescope.producers.shipping.pace import ShippingPace
from moescope.producers.shipping.shipper import Shipper
from moescope.producers.shipping.totals import ShippingTotals

__all__ = ["Shipper", "ShippingPace", "ShippingTotals"]
