import { Body, Controller, Param, Post } from '@nestjs/common';
import { LockService } from './lock.service';
import { ShippingService } from './shipping.service';

/** How long to work, and how long the lock may last; in milliseconds. */
interface ShipRequest {
  holdMs?: number;
  ttlMs?: number;
}

/** OrdersController ships an order under its lock: 201 with a number, 409 when somebody else is at it. */
@Controller('orders')
export class OrdersController {
  constructor(
    private readonly locks: LockService,
    private readonly shipping: ShippingService,
  ) {}

  @Post(':id/ship')
  async ship(@Param('id') id: string, @Body() request: ShipRequest = {}): Promise<{ shipped: number }> {
    const { holdMs = 0, ttlMs = 30_000 } = request;
    const shipped = await this.locks.withLock(`lock:order:${id}`, ttlMs, () => this.shipping.ship(holdMs));
    return { shipped };
  }
}
